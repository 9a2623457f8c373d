"""The inverter folder: it comes back as it was, and nothing odd is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.model.conftest import small_tokenizer
from unembed.config import Config, tiny
from unembed.data.shards import file_sha256
from unembed.errors import CheckpointError
from unembed.model import artifact
from unembed.model.artifact import Artifact, EncoderInfo
from unembed.model.denoiser import Denoiser
from unembed.model.echo import Echo
from unembed.model.surrogate import Surrogate
from unembed.model.writer import Writer


@pytest.fixture
def made() -> Artifact:
    torch.manual_seed(0)
    config = Config(replace(tiny().model, vocab_size=40, mask_id=4, vector_dim=24), tiny().diffusion, tiny().train)
    net = Denoiser(config.model)
    net.forbid([0, 1, 2, 3])
    return Artifact(net, small_tokenizer(), config, EncoderInfo("bag", 24, True, "bag-1"), {"data": {"texts": 7}})


@pytest.fixture
def folder(made: Artifact, tmp_path: Path) -> Path:
    return artifact.save(tmp_path / "inverter", made, "fp32")


def test_round_trip(made: Artifact, folder: Path) -> None:
    found = artifact.load(folder)
    assert found.config == made.config
    assert found.encoder == made.encoder
    assert found.info == made.info
    for name, tensor in made.net.state_dict().items():
        assert torch.equal(found.net.state_dict()[name], tensor), name
    assert "| texts | 7 |" in (folder / "README.md").read_text()
    assert not list(folder.glob(".saving*"))


def test_bf16_is_half_the_size_and_close(made: Artifact, folder: Path, tmp_path: Path) -> None:
    small = artifact.save(tmp_path / "small", made, "bf16")
    ratio = (small / "model.safetensors").stat().st_size / (folder / "model.safetensors").stat().st_size
    assert ratio < 0.6
    loaded = artifact.load(small).net
    assert loaded.embed.weight.dtype == torch.float32
    assert torch.allclose(loaded.embed.weight, made.net.embed.weight, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", *artifact.BESIDE])
@pytest.mark.parametrize("damage", ["cut", "flip", "missing"])
def test_damaged_files_are_refused(made: Artifact, tmp_path: Path, name: str, damage: str) -> None:
    surrogate = Surrogate(made.net)
    whole = replace(
        made, surrogate=surrogate, writer=Writer(made.net, surrogate, sees=True), echo=Echo(made.net, surrogate)
    )
    folder = artifact.save(tmp_path / "both", whole, "fp32")
    path = folder / name
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[-3] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=r"copy (it|the whole inverter folder) again"):
        artifact.load(folder)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_what_was_loaded_is_kept_to_the_bit(made: Artifact, tmp_path: Path, dtype: artifact.Dtype) -> None:
    surrogate = Surrogate(made.net)
    whole = replace(made, surrogate=surrogate, writer=Writer(made.net, surrogate, sees=True))
    first = artifact.save(tmp_path / "first", whole, dtype)
    loaded = artifact.load(first)
    again = artifact.save(tmp_path / "again", loaded)
    for part in ("model.safetensors", artifact.SURROGATE, artifact.WRITER):
        assert (again / part).read_bytes() == (first / part).read_bytes()
    assert loaded.writer is not None
    assert whole.writer is not None
    for name, tensor in whole.writer.state_dict().items():
        close = loaded.writer.state_dict()[name]
        assert torch.allclose(close, tensor, rtol=0.01, atol=0.005 * float(tensor.abs().max()) + 1e-6), name


def test_int8_makes_a_writer_smaller(made: Artifact, tmp_path: Path) -> None:
    surrogate = Surrogate(made.net)
    whole = replace(made, surrogate=surrogate, writer=Writer(made.net, surrogate))
    sizes = [(artifact.save(tmp_path / d, whole, d) / artifact.WRITER).stat().st_size for d in ("bf16", "int8")]
    assert sizes[1] < 0.85 * sizes[0]  # of a net this small not all is large


def edit(folder: Path, change: dict[str, object]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def test_unknown_keys_and_formats_are_refused(folder: Path) -> None:
    original = (folder / "config.json").read_text()
    model = json.loads(original)["model"]
    for change, message in [
        ({"format": 99}, "format 1"),
        ({"surprise": 1}, "surprise"),
        ({"model": {**model, "layer": 3}}, "did you mean 'layers'"),
        ({"model": {**model, "width": "wide"}}, "width"),
        ({"model": {**model, "layers": 3}}, "does not fit"),
        ({"encoder": {"spec": "x", "dim": 24, "colour": 1}}, "colour"),
        ({"encoder": {"spec": "x", "dim": 24}}, "normalized"),
        ({"encoder": 7}, "group of settings"),
        ({"model": {**model, "mask_id": 999}}, "outside the vocabulary"),
        ({"sha256": {}}, "hashes"),
        ({"dtype": "fp64"}, "fp64"),
        ({"sha256": ["x"]}, "hashes"),
    ]:
        (folder / "config.json").write_text(original)
        edit(folder, change)
        with pytest.raises(CheckpointError, match=message):
            artifact.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="JSON"):
        artifact.load(folder)


def test_places_that_hold_no_inverter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"no config.json"):
        artifact.load(tmp_path)
    with pytest.raises(CheckpointError, match="no inverter folder"):
        artifact.load("./nowhere")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="hub"):
        artifact.load("nobody/no-such-inverter")
    with pytest.raises(CheckpointError, match="hub"):
        artifact.load("no body/no-such-inverter")


def test_vectors_of_another_encoder_are_refused(made: Artifact) -> None:
    artifact.check_encoder(made, dim=24, spec="bag", fingerprint="bag-1")
    with pytest.raises(CheckpointError, match=r"24 dimensions.*have 12"):
        artifact.check_encoder(made, dim=12)
    with pytest.raises(CheckpointError, match="fingerprints differ"):
        artifact.check_encoder(made, dim=24, spec="other", fingerprint="other-1")


@pytest.mark.parametrize("name", ["model.safetensors", "surrogate.safetensors"])
def test_a_pickle_is_never_loaded(folder: Path, name: str) -> None:
    """A torch.save file under the right name is refused before anything in it runs."""
    torch.save({"a": torch.zeros(1)}, folder / name)
    description = json.loads((folder / "config.json").read_text())
    description["sha256"][name] = file_sha256(folder / name)
    (folder / "config.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="does not fit"):
        artifact.load(folder)
