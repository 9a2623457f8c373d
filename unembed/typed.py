"""Plain values, as JSON holds them, to dataclasses: all is checked against the annotations, nothing is guessed."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from unembed.errors import UnembedError

T = TypeVar("T")


def build(kind: type[T], values: Any, where: str, error: type[UnembedError]) -> T:
    """The dataclass `kind` of these values; an unknown or missing key or a value of another kind is an `error`.

    Fields with a default may be missing: files of an earlier version then still load.
    """
    if not isinstance(values, dict):
        raise error(f"{where} is {_short(values)}, not a group of settings")
    hints = get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise error(f"{where} has an unknown key {key!r}{suggest(key, hints)}")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in values and not optional:
            raise error(f"{where} lacks the key {field.name!r}")
    return kind(**{key: _value(hints[key], value, f"{where}.{key}", error) for key, value in values.items()})


def suggest(word: str, known: Iterable[str]) -> str:
    """What was meant by a word that is not known, or what is known."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def _value(kind: Any, value: Any, where: str, error: type[UnembedError]) -> Any:
    """`value` as an instance of the annotation `kind`."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Literal:
        if value not in args:
            raise error(f"{where} is {value!r}: choose one of {', '.join(map(str, args))}")
        return value
    if type(None) in args:  # X | None
        return None if value is None else _value(args[0], value, where, error)
    if origin is dict and isinstance(value, dict):
        return {key: _value(args[1], item, f"{where}.{key}", error) for key, item in value.items()}
    if origin is list and isinstance(value, list):
        return [_value(args[0], item, f"{where}[{i}]", error) for i, item in enumerate(value)]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, where, error)
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise error(f"{where} is {_short(value)}, not a {getattr(origin or kind, '__name__', kind)}")


def _short(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 40 else repr(value)[:37] + "..."
