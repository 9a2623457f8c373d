"""unembed: what text is in an embedding vector?

>>> import unembed
>>> inverter = unembed.load()                # the shipped inverter, for all-MiniLM-L6-v2
>>> inverter.invert(vectors)                 # numpy (n, d) -> list of Inversion
>>> unembed.encoder("minilm").encode(texts)  # any encoder by its spec

Importing this module imports neither torch nor numpy; the first use does.
"""

from __future__ import annotations

from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

from unembed.errors import CheckpointError

if TYPE_CHECKING:
    from unembed.data.encoders import Encoder
    from unembed.decode import DecodeConfig, Inversion, Step
    from unembed.decode.feedback import FeedbackConfig
    from unembed.inverter import Inverter

    __version__: str

__all__ = ["DecodeConfig", "FeedbackConfig", "Inversion", "Inverter", "Step", "__version__", "encoder", "load"]

SHIPPED = Path(__file__).parent / "weights" / "minilm"

_HOMES = {
    "DecodeConfig": "unembed.decode",
    "FeedbackConfig": "unembed.decode.feedback",
    "Inversion": "unembed.decode",
    "Step": "unembed.decode",
    "Inverter": "unembed.inverter",
}


def load(location: str | Path | None = None, *, device: str = "cpu") -> Inverter:
    """Load an inverter from a folder or hub id; without one, the shipped inverter for all-MiniLM-L6-v2.

    `device` is `cpu`, `cuda`, `mps`, or `auto` for the fastest there is.
    """
    from unembed.inverter import Inverter

    if location is None and not (SHIPPED / "config.json").is_file():
        raise CheckpointError(f"no weights are shipped at {SHIPPED}: give the folder of an inverter, or install again")
    return Inverter.from_pretrained(SHIPPED if location is None else location, device=device)


def encoder(spec: str) -> Encoder:
    """Make an encoder by its spec, such as `minilm` or `st:intfloat/e5-small-v2`."""
    from unembed.data import encoders

    return encoders.load(spec)


def __getattr__(name: str) -> object:
    if name == "__version__":
        try:
            return metadata.version("unembed")
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            return "0+unknown"
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'unembed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
