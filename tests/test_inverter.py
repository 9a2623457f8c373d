"""The public face."""

import logging
import subprocess
import sys
from dataclasses import fields
from typing import get_type_hints

import numpy as np
import pytest
import torch

import unembed
from tests.decode.conftest import DIM, MAX_TOKENS, make_inverter, make_vectors, same
from unembed import DecodeConfig, Inversion, Inverter, Step
from unembed.decode import strategies
from unembed.decode.config import DecodeSettings
from unembed.errors import CheckpointError, ConfigError, DataError


@pytest.fixture(scope="module")
def inverter():
    return make_inverter()


def test_invert_gives_an_inversion_for_each_vector(inverter):
    found = inverter.invert(make_vectors(5))
    assert len(found) == 5
    for inversion in found:
        assert isinstance(inversion, Inversion)
        assert inversion.text == inverter.artifact.tokenizer.decode(list(inversion.tokens))
        assert len(inversion.tokens) == len(inversion.confidence) <= MAX_TOKENS
        assert inversion.alternatives == ()
        assert inversion.to_dict()["text"] == inversion.text
    assert inverter.dim == DIM == inverter.encoder.dim
    assert inverter.max_tokens == MAX_TOKENS


def test_keywords_replace_single_settings(inverter):
    vectors = make_vectors(3)
    config = DecodeConfig(strategy="sequential", steps=2, seed=3, temperature=1.0)
    assert inverter.invert(vectors, config, steps=5) == inverter.invert(
        vectors, strategy="sequential", steps=5, seed=3, temperature=1.0
    )
    assert inverter.invert(vectors, DecodeConfig(temperature=1.0), temperature=0.0) == inverter.invert(vectors)
    with pytest.raises(ConfigError, match="no strategy"):
        inverter.invert(vectors, strategy="magic")
    with pytest.raises(TypeError):
        inverter.invert(vectors, stepz=5)


def test_the_keywords_are_the_fields_of_the_settings():
    assert get_type_hints(DecodeSettings) == get_type_hints(DecodeConfig)
    assert list(DecodeSettings.__annotations__) == [field.name for field in fields(DecodeConfig)]


def test_alternatives_are_sorted_and_differ(inverter):
    (found,) = inverter.invert(make_vectors(1), n_best=4)
    texts = [found.text, *(other.text for other in found.alternatives)]
    assert len(set(texts)) == len(texts) == 4
    assert [found.score, *(o.score for o in found.alternatives)] == sorted(
        [found.score, *(o.score for o in found.alternatives)], reverse=True
    )
    assert len(found.to_dict()["alternatives"]) == 3


@pytest.mark.parametrize("strategy", strategies.BUILT_IN)
def test_the_stream_ends_in_what_invert_gives(inverter, strategy):
    vectors = make_vectors(3)
    for settings in ({}, {"temperature": 1.0, "seed": 4, "guidance": 1.5}):
        config = DecodeConfig(strategy=strategy, steps=5, lengths=1, **settings)
        expected = inverter.invert(vectors, config)
        for vector, inversion in zip(vectors, expected, strict=True):
            steps = list(inverter.stream(vector, config))
            assert same(steps[-1].inversion, inversion)
            assert all(step.inversion is None for step in steps[:-1])
            assert steps[-1].text == inversion.text
            assert steps[-1].masked == ()
            assert [step.step for step in steps] == list(range(1, len(steps) + 1))


def test_a_step_shows_what_is_masked(inverter):
    first, *_ = inverter.stream(make_vectors(1), strategy="sequential", steps=99, length=4)
    assert isinstance(first, Step)
    assert first.masked == (1, 2, 3)
    assert first.tokens[1:] == ("[MASK]",) * 3
    assert first.confidence[1:] == (0.0, 0.0, 0.0)
    assert first.text.endswith("_ _ _")
    assert first.passes == 1
    with pytest.raises(DataError, match="one vector is wanted, got 2"):
        inverter.stream(make_vectors(2))


def test_vectors_of_any_kind_and_a_note_when_they_are_scaled(inverter, tmp_path, caplog):
    vectors = make_vectors(3)
    expected = inverter.invert(vectors)
    np.save(tmp_path / "v.npy", vectors)
    assert inverter.invert(tmp_path / "v.npy") == inverter.invert(torch.tensor(vectors)) == expected
    assert inverter.invert([]) == inverter.invert(np.zeros((0, DIM))) == []
    with caplog.at_level(logging.WARNING, "unembed"):
        scaled = inverter.invert(vectors * 4)
    assert [inversion.text for inversion in scaled] == [inversion.text for inversion in expected]
    assert "not of unit length" in caplog.text
    with pytest.raises(DataError, match="this inverter reads 16"):
        inverter.invert(vectors[:, :5])


def test_save_load_and_the_same_texts(inverter, tmp_path):
    inverter.save_pretrained(tmp_path / "saved", dtype="fp32")
    again = Inverter.from_pretrained(tmp_path / "saved")
    assert again.invert(make_vectors(4)) == inverter.invert(make_vectors(4))
    loaded = unembed.load(str(tmp_path / "saved"), device="auto")
    assert loaded.encoder == inverter.encoder
    assert loaded.to("cpu") is loaded
    assert loaded.device.type == "cpu"
    with pytest.raises(CheckpointError, match="no inverter folder"):
        unembed.load(tmp_path / "other")


def test_no_shipped_weights_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(unembed, "SHIPPED", tmp_path)
    with pytest.raises(CheckpointError, match="no weights are shipped"):
        unembed.load()


def test_push_uploads_exactly_the_folder(inverter, monkeypatch):
    import huggingface_hub

    calls = []

    class Commit:
        commit_url = "https://hub/me/mine/commit/1"

    def upload(self, *, repo_id, folder_path, commit_message):
        from pathlib import Path

        calls.append((repo_id, sorted(path.name for path in Path(folder_path).iterdir())))
        return Commit()

    created = []

    def create(self, repo_id, private, exist_ok):
        created.append((repo_id, private))

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    assert inverter.push_to_hub("me/mine") == Commit.commit_url
    assert created == [("me/mine", True)]
    assert calls == [("me/mine", ["README.md", "config.json", "model.safetensors", "tokenizer.json"])]

    def refuse(self, **_):
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", refuse)
    with pytest.raises(CheckpointError, match="the hub refused me/mine \\(no network\\)"):
        inverter.push_to_hub("me/mine", private=False)
    assert created[-1] == ("me/mine", False)


def test_importing_costs_no_torch():
    code = (
        "import sys, unembed, unembed.decode; unembed.DecodeConfig(strategy='euler'); unembed.__version__; "
        "heavy = {'torch', 'numpy', 'tokenizers', 'pyarrow'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exported_names():
    assert set(unembed.__all__) <= set(dir(unembed))
    for name in unembed.__all__:
        assert getattr(unembed, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        unembed.nothing  # noqa: B018
    assert unembed.encoder.__doc__
