"""Encoders by name: `load("minilm")`, `load("st:intfloat/e5-small-v2")`, ...; the grammar is in docs/encoders.md.

Members are imported when asked for, so this module needs none of their libraries.
"""

from __future__ import annotations

import difflib
from importlib import import_module, metadata
from typing import cast

from unembed.data.encoders.base import Encoder, Factory, Spec, parse
from unembed.data.encoders.known import KNOWN
from unembed.errors import EncoderError

__all__ = ["GROUP", "Encoder", "Factory", "Spec", "available", "load"]

GROUP = "unembed.encoders"
"""Entry point group for encoders of third parties: `name = "module:factory"`, a `Factory`."""

MEMBERS = {
    "minilm": "unembed.data.encoders.minilm",
    "all-mpnet-base-v2": "unembed.data.encoders.mpnet",
    "st": "unembed.data.encoders.st",
    "openai": "unembed.data.encoders.openai",
    "model2vec": "unembed.data.encoders.model2vec",
    **dict.fromkeys(KNOWN, "unembed.data.encoders.st"),
}
"""Kind of spec -> module whose `create` is the factory."""


def load(spec: str) -> Encoder:
    """Make the encoder that a spec names."""
    parsed = parse(spec)
    return _factory(parsed)(parsed)


def available() -> list[str]:
    """All kinds of encoder that `load` knows here, those of third parties included."""
    return sorted({*MEMBERS, *(point.name for point in metadata.entry_points(group=GROUP))})


def _factory(spec: Spec) -> Factory:
    if spec.kind in MEMBERS:
        return cast(Factory, import_module(MEMBERS[spec.kind]).create)
    for point in metadata.entry_points(group=GROUP):
        if point.name == spec.kind:
            try:
                return cast(Factory, point.load())
            except Exception as error:
                raise EncoderError(f"the plug-in {point.value} of '{spec.kind}' does not load: {error}") from error
    raise EncoderError(_unknown(spec))


def _unknown(spec: Spec) -> str:
    kinds = available()
    if "/" in spec.text and not spec.argument:  # a bare hub id or folder
        near = f"st:{spec.text}"
    else:
        by_case = {kind.lower(): kind for kind in kinds}
        close = difflib.get_close_matches(spec.kind.lower(), by_case, n=1, cutoff=0.5)
        near = by_case[close[0]] if close else ""
    hint = f"did you mean '{near}'? " if near else ""
    return f"no encoder '{spec.text}': {hint}there are: {', '.join(kinds)}"
