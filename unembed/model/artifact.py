"""The inverter folder: what a trained inverter is on disk, and the checks it must pass to be loaded.

model.safetensors   weights (bf16 or fp32; int8 keeps the vocabulary matrices in one byte a number, the rest in bf16)
surrogate.safetensors  those of the net that foresees vectors for it, if it has one
writer.safetensors  those of the net that writes from left to right, if it has one (int8: all its matrices)
echo.safetensors    those of the net that judges what was written, if it has one
config.json         architecture, schedule, recipe, encoder, data, metrics, and the hashes of the files beside it
tokenizer.json      the inverter's tokenizer
README.md           model card
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from unembed.config import Config, from_dict, to_dict
from unembed.data.shards import EncoderInfo as EncoderInfo
from unembed.data.shards import file_sha256
from unembed.errors import CheckpointError, ConfigError
from unembed.model.card import render_card
from unembed.model.denoiser import Denoiser
from unembed.model.echo import Echo
from unembed.model.surrogate import Surrogate
from unembed.model.writer import Writer

FORMAT = 1
SURROGATE = "surrogate.safetensors"
WRITER = "writer.safetensors"
ECHO = "echo.safetensors"
BESIDE = (SURROGATE, WRITER, ECHO)
Dtype = Literal["bf16", "int8", "fp32"]
DTYPES = {"bf16": torch.bfloat16, "int8": torch.bfloat16, "fp32": torch.float32}
# With a row for each word: two thirds of all numbers. Each row has a scale of its own, which stands beside it.
TABLES = ("embed.weight", "reader.words.weight")
SURROGATE_TABLE = "words.weight"
# Of a writer, which has no tables, every matrix of so many numbers is in int8.
LARGE = 10_000
SCALE = ".scale"
FILES = ("model.safetensors", "config.json", "tokenizer.json", "README.md", *BESIDE)


@dataclass(slots=True)
class Artifact:
    """A trained inverter, in memory."""

    net: Denoiser
    tokenizer: Tokenizer
    config: Config
    encoder: EncoderInfo
    info: dict[str, Any] = field(default_factory=dict)
    """What the card tells: data, metrics, examples."""
    surrogate: Surrogate | None = None
    writer: Writer | None = None
    echo: Echo | None = None
    dtype: Dtype = "bf16"
    """How its numbers were kept on disk: kept so again, they stay the same to the bit."""


def save(folder: Path, artifact: Artifact, dtype: Dtype | None = None) -> Path:
    """Write the folder whole: into a temporary one first, then file by file with config.json last."""
    dtype = dtype or artifact.dtype
    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, Mapping[str, Tensor]] = {"model.safetensors": artifact.net.state_dict()}
    if artifact.surrogate is not None:
        weights[SURROGATE] = artifact.surrogate.state_dict()
    if artifact.writer is not None:
        weights[WRITER] = artifact.writer.state_dict()
    if artifact.echo is not None:
        weights[ECHO] = artifact.echo.state_dict()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as name:
        temporary = Path(name)
        for part, named in weights.items():
            packed = _packed(named, dtype, large=part == WRITER)
            save_file(packed, temporary / part, metadata={"format": "pt"})
        artifact.tokenizer.save(str(temporary / "tokenizer.json"))
        description = {
            "format": FORMAT,
            **to_dict(artifact.config),
            "encoder": asdict(artifact.encoder),
            "info": artifact.info,
            "dtype": dtype,
            "sha256": {part: file_sha256(temporary / part) for part in (*weights, "tokenizer.json")},
        }
        (temporary / "config.json").write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
        (temporary / "README.md").write_text(render_card(description))
        for part in (*weights, "tokenizer.json", "README.md", "config.json"):
            (temporary / part).chmod(0o644)  # safetensors writes files that only their owner may read
            os.replace(temporary / part, folder / part)
        for part in set(BESIDE) - weights.keys():
            (folder / part).unlink(missing_ok=True)  # of an inverter that was here before
    return folder


def load(location: str | Path) -> Artifact:
    """Load an inverter from a folder or from a hub id; anything odd is refused with what to do about it."""
    folder = _folder(str(location))
    description = _description(folder)
    for part, expected in _hashes(description, folder).items():
        if not (folder / part).is_file():
            raise CheckpointError(f"{folder} has no {part}: copy the whole inverter folder again")
        if file_sha256(folder / part) != expected:
            raise CheckpointError(f"{folder / part} is truncated or altered (sha256 differs): copy it again")
    settings = {key: description[key] for key in ("model", "diffusion", "train")}
    try:
        config = from_dict(Config, settings, f"{folder / 'config.json'}")
        encoder = from_dict(EncoderInfo, description["encoder"], f"{folder / 'config.json'}: encoder")
    except ConfigError as error:
        raise CheckpointError(f"{error} (the inverter was made by another version: upgrade unembed)") from None
    net = Denoiser(config.model)
    _fill(folder / "model.safetensors", net.load_state_dict)
    surrogate = None
    if SURROGATE in description["sha256"]:
        surrogate = Surrogate(net).eval()
        _fill(folder / SURROGATE, surrogate.load_state_dict)
    for part, what in ((WRITER, "a writer"), (ECHO, "an echo")):
        if part in description["sha256"] and surrogate is None:
            raise CheckpointError(f"{folder} has {what} but no surrogate, which it needs: copy the folder again")
    writer = None
    if WRITER in description["sha256"] and surrogate is not None:
        writer = Writer(net, surrogate, *_writer_shape(folder / WRITER)).requires_grad_(False).eval()
        _fill(folder / WRITER, writer.load_state_dict)
    echo = None
    if ECHO in description["sha256"] and surrogate is not None:
        echo = Echo(net, surrogate).requires_grad_(False).eval()
        _fill(folder / ECHO, echo.load_state_dict)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Artifact(
        net.eval(), tokenizer, config, encoder, description["info"], surrogate, writer, echo, description["dtype"]
    )


def weights_hash(net: nn.Module) -> str:
    """A hash of the weights: results of another inverter must not be mixed with those of this one."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _packed(named: Mapping[str, Tensor], dtype: str, large: bool) -> dict[str, Tensor]:
    """The tensors as a file holds them; `large`: in int8 all large matrices are, not only tables."""
    packed = {}
    for name, tensor in named.items():
        tensor = tensor.detach().cpu()
        table = name in (*TABLES, SURROGATE_TABLE) or (
            large and name.endswith(".weight") and tensor.ndim == 2 and tensor.numel() >= LARGE
        )
        if dtype == "int8" and table:
            scale = tensor.float().abs().amax(1).clamp(min=1e-12) / 127
            packed[name + SCALE] = scale
            packed[name] = (tensor.float() / scale[:, None]).round().to(torch.int8)
        else:
            packed[name] = tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor
    return {name: tensor.contiguous() for name, tensor in packed.items()}


def _unpacked(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as a network takes them, in float32."""
    scales = {name.removesuffix(SCALE): packed[name] for name in packed if name.endswith(SCALE)}
    return {
        name: tensor.float() * scales[name][:, None] if name in scales
        else tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in packed.items()
        if not name.endswith(SCALE)
    }  # fmt: skip


def _fill(path: Path, take: Callable[[dict[str, Tensor]], object]) -> None:
    """Hand the tensors of a file, in float32, to a network."""
    try:
        take(_unpacked(load_file(path)))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path} does not fit its config.json ({reason})") from None


def _writer_shape(path: Path) -> tuple[bool, int]:
    """Whether the writer of this file has learned to see guesses, and how many blocks it has."""
    try:
        with safe_open(path, "pt") as file:
            names = [name.split(".") for name in file.keys()]  # noqa: SIM118  (it is no dictionary)
        return any(name[0] == "sight" for name in names), len({name[1] for name in names if name[0] == "blocks"})
    except SafetensorError as error:
        raise CheckpointError(f"{path} does not fit its config.json ({error})") from None


def check_encoder(artifact: Artifact, *, dim: int, spec: str = "", fingerprint: str = "") -> None:
    """Refuse vectors of another encoder or dimension, naming both."""
    mine = artifact.encoder
    if dim != mine.dim:
        raise CheckpointError(
            f"this inverter reads vectors of {mine.spec} ({mine.dim} dimensions), these have {dim}: "
            "choose the inverter of that encoder or train one (unembed train)"
        )
    if fingerprint and mine.fingerprint and fingerprint != mine.fingerprint:
        raise CheckpointError(
            f"this inverter was trained for {mine.spec}, the vectors come from {spec or 'another encoder'} "
            "(the fingerprints differ): choose the inverter of that encoder or train one (unembed train)"
        )


def check_pairs(artifact: Artifact, pairs: EncoderInfo, what: str) -> None:
    """What is trained beside an inverter learns from vectors of its encoder; those of another are refused."""
    if artifact.encoder != pairs:
        raise ConfigError(
            f"the inverter reads vectors of {artifact.encoder.spec}, the dataset has those of {pairs.spec}: "
            f"{what} learns from vectors of the inverter's encoder"
        )


def _hashes(description: dict[str, Any], folder: Path) -> dict[str, str]:
    """The hashes of all files; without them a damaged file could pass."""
    hashes = description["sha256"]
    needed = {"model.safetensors", "tokenizer.json"}
    if not isinstance(hashes, dict) or hashes.keys() - set(BESIDE) != needed:
        raise CheckpointError(f"{folder / 'config.json'} does not hold the hashes of its files: copy the folder again")
    return hashes


def _folder(location: str) -> Path:
    path = Path(location)
    if path.is_dir():
        return path
    if path.exists() or location.startswith((".", "/", "~")) or location.count("/") != 1:
        raise CheckpointError(
            f"no inverter folder at {location}: give a folder with config.json, or a hub id owner/name"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        return Path(snapshot_download(location, allow_patterns=[*FILES, "calibration.json"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"no folder {location} here, and the hub does not give it ({reason})") from None


def _description(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} is no inverter folder: it has no config.json (is it a dataset or a run?)")
    try:
        description = json.loads(path.read_text())
    except ValueError:
        raise CheckpointError(f"{path} is not valid JSON: copy the inverter folder again") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not of inverter format {FORMAT}: upgrade unembed or train the inverter again")
    known = {"format", "model", "diffusion", "train", "encoder", "info", "dtype", "sha256"}
    if description.keys() != known:
        odd = ", ".join(sorted(description.keys() ^ known))
        raise CheckpointError(f"{path} has unknown or missing keys ({odd}): upgrade unembed or copy the folder again")
    if description["dtype"] not in DTYPES:
        raise CheckpointError(
            f"{path} has the dtype {description['dtype']!r}: upgrade unembed or copy the folder again"
        )
    return description
