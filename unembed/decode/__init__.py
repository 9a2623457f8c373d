"""Decoding: vectors in, inversions out. Nothing here imports torch until something is decoded."""

from unembed.decode.config import DecodeConfig
from unembed.decode.result import Inversion, Step

__all__ = ["DecodeConfig", "Inversion", "Step"]
