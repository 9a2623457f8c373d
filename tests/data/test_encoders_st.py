"""The sentence-transformers path, on tiny random models built like the real ones."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

pytest.importorskip("sentence_transformers")

from tests.data.encoder_models import (
    GEMMA_PROMPTS,
    JINA_PROMPTS,
    QWEN_PROMPTS,
    SENTENCES,
    gemma_like,
    hidden_states,
    jina_like,
    qwen_like,
    without_module,
)
from unembed.data.encoders import load
from unembed.data.encoders.base import Encoder
from unembed.data.encoders.st import TRUST
from unembed.errors import EncoderError


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_like(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gemma_like(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module")
def jina(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jina_like(tmp_path_factory.mktemp("jina"))


def assert_same(encoder: Encoder, expected: list[torch.Tensor]) -> None:
    np.testing.assert_allclose(encoder.encode(SENTENCES), torch.stack(expected).numpy(), atol=1e-5)


def assert_different(encoder: Encoder, expected: list[torch.Tensor]) -> None:
    assert np.abs(encoder.encode(SENTENCES) - torch.stack(expected).numpy()).max() > 1e-2


def last_token(folder: Path, prompt: str) -> list[torch.Tensor]:
    return [F.normalize(hidden_states(folder, prompt + text)[-1], dim=0) for text in SENTENCES]


def test_qwen_takes_the_last_token_and_a_prompt_for_queries(qwen: Path) -> None:
    query = load(f"qwen3-embedding-0.6b:query?path={qwen}")
    document = load(f"qwen3-embedding-0.6b?path={qwen}")
    assert query.dim == document.dim == 16
    assert query.normalized
    assert_same(query, last_token(qwen, QWEN_PROMPTS["query"]))
    assert_same(document, last_token(qwen, ""))
    assert_different(query, last_token(qwen, ""))
    assert_different(document, [F.normalize(hidden_states(qwen, text).mean(0), dim=0) for text in SENTENCES])
    assert query.fingerprint != document.fingerprint


def test_normalisation_is_the_models_own(qwen: Path, tmp_path: Path) -> None:
    bare = load(f"st:{without_module(qwen, tmp_path / 'bare', '2_Normalize')}")
    assert not bare.normalized
    assert_same(bare, [hidden_states(qwen, text)[-1] for text in SENTENCES])


def gemma_vectors(folder: Path, prompt: str, layers: tuple[str, ...]) -> list[torch.Tensor]:
    vectors = []
    for text in SENTENCES:
        vector = hidden_states(folder, prompt + text).mean(0)
        for layer in layers:
            vector = load_file(folder / layer / "model.safetensors")["linear.weight"] @ vector
        vectors.append(F.normalize(vector, dim=0))
    return vectors


def test_gemma_has_two_dense_layers_and_a_prompt_on_both_sides(gemma: Path, tmp_path: Path) -> None:
    both = ("2_Dense", "3_Dense")
    for side, prompt in GEMMA_PROMPTS.items():
        encoder = load(f"embeddinggemma-300m:{side}?path={gemma}")
        assert (encoder.dim, encoder.normalized) == (24, True)
        assert_same(encoder, gemma_vectors(gemma, prompt, both))
        assert_different(encoder, gemma_vectors(gemma, "", both))
    assert load(f"embeddinggemma-300m?path={gemma}").fingerprint == encoder.fingerprint  # document is the default
    shorter = load(f"st:{without_module(gemma, tmp_path / 'shorter', '3_Dense')}?prompt=document")
    assert shorter.dim == 48
    assert_same(shorter, gemma_vectors(gemma, GEMMA_PROMPTS["document"], ("2_Dense",)))


def jina_vectors(folder: Path, prompt: str, task: str | None) -> list[torch.Tensor]:
    adapters = load_file(folder / "adapters.safetensors")
    vectors = []
    for text in SENTENCES:
        hidden = hidden_states(folder, prompt + text)
        if task is not None:
            hidden = hidden + hidden @ adapters[f"{task}_a"] @ adapters[f"{task}_b"]
        vectors.append(F.normalize(hidden.mean(0), dim=0))
    return vectors


def test_jina_uses_the_task_adapter(jina: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST, "1")
    tasks = {"": "retrieval.passage", ":query": "retrieval.query", ":text-matching": "text-matching"}
    fingerprints = set()
    for side, task in tasks.items():
        encoder = load(f"jina-embeddings-v3{side}?path={jina}")
        assert_same(encoder, jina_vectors(jina, JINA_PROMPTS[task], task))
        assert_different(encoder, jina_vectors(jina, JINA_PROMPTS[task], None))
        fingerprints.add(encoder.fingerprint)
    assert len(fingerprints) == 3
    assert_same(load(f"st:{jina}"), jina_vectors(jina, "", None))
    assert_same(load(f"st:{jina}?task=separation"), jina_vectors(jina, "", "separation"))


@pytest.mark.parametrize("spec", ["jina-embeddings-v3?path={}", "st:{}"])
def test_code_of_a_model_runs_only_when_asked(jina: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRUST, raising=False)
    with pytest.raises(EncoderError, match=f"set {TRUST}=1"):
        load(spec.format(jina))


def test_code_named_in_a_config_is_refused_too(qwen: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen, tmp_path / "model")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("{", '{"auto_map": {"AutoModel": "evil.Model"},', 1))
    with pytest.raises(EncoderError, match=TRUST):
        load(f"st:{folder}")


def test_fingerprint_follows_weights_and_settings(gemma: Path, tmp_path: Path) -> None:
    same = shutil.copytree(gemma, tmp_path / "same")
    (same / "README.md").write_text("A card decides nothing.")
    assert load(f"st:{same}").fingerprint == load(f"st:{gemma}").fingerprint
    assert load(f"st:{gemma}?prompt=query").fingerprint != load(f"st:{gemma}").fingerprint
    weights = bytearray((same / "3_Dense/model.safetensors").read_bytes())
    weights[-1] ^= 1
    (same / "3_Dense/model.safetensors").write_bytes(weights)
    assert load(f"st:{same}").fingerprint != load(f"st:{gemma}").fingerprint


def test_nothing_is_printed(qwen: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    load(f"st:{qwen}").encode(SENTENCES)
    assert capfd.readouterr() == ("", "")


def test_no_pickle_is_read(qwen: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(EncoderError, match="is a pickle, which is never read"):
        load(f"st:{folder}")


def test_bad_specs_are_explained(qwen: Path, tmp_path: Path) -> None:
    cases = {
        f"qwen3-embedding-0.6b:passage?path={qwen}": "has no side 'passage'.*qwen3-embedding-0.6b:query",
        f"st:{qwen}?prompt=passage": "no prompt 'passage', only: .*query",
        f"st:{qwen}?task=separation": "takes no task",
        f"st:{qwen}?dtype=int3": "dtype 'int3'.*float32",
        f"st:{qwen}?revision=abc": "has no revision",
        f"st:{qwen}?trust_remote_code=1": "unknown option 'trust_remote_code'",
        f"st:{tmp_path}": "no modules.json",
        f"st:{tmp_path / 'nowhere'}": "neither a folder nor a hub id",
        "st:": "neither a folder nor a hub id",
    }
    for spec, message in cases.items():
        with pytest.raises(EncoderError, match=message):
            load(spec)
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(EncoderError, match="damaged"):
        load(f"st:{tmp_path}")


def test_missing_model_on_the_hub_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match="cannot get 'nobody/nothing' from the hub") as caught:
        load("st:nobody/nothing?revision=0123456789abcdef")
    assert "\n" not in str(caught.value)


def test_missing_extra_names_the_pip_command(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(Exception, match=r"pip install 'unembed\[encoders\]'"):
        load(f"st:{qwen}")
