"""Values from JSON become dataclasses, or a clear refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from unembed.errors import ConfigError, DataError
from unembed.typed import build


@dataclass
class Inner:
    size: int
    share: float = 0.5


@dataclass
class Outer:
    name: str
    kind: Literal["big", "small"]
    parts: list[Inner]
    named: dict[str, Inner] = field(default_factory=dict)
    note: str | None = None
    open: bool = False
    free: Any = None


GOOD: dict[str, Any] = {"name": "n", "kind": "big", "parts": [{"size": 1, "share": 2}], "named": {"a": {"size": 3}}}


def test_what_fits_is_built() -> None:
    built = build(Outer, {**GOOD, "free": [1, {"x": 2}], "open": True}, "it", DataError)
    assert built == Outer("n", "big", [Inner(1, 2.0)], {"a": Inner(3)}, None, True, [1, {"x": 2}])
    assert type(built.parts[0].share) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nam": 1}, "it has an unknown key 'nam'; did you mean 'name'"),
        ({"zzz": 1}, "unknown key 'zzz'; known: name, kind"),
        ({"kind": "huge"}, "it.kind is 'huge': choose one of big, small"),
        ({"name": 3}, "it.name is 3, not a str"),
        ({"open": 1}, "it.open is 1, not a bool"),
        ({"parts": {}}, "it.parts is {}, not a list"),
        ({"parts": [{"size": True}]}, r"it.parts\[0\].size is True, not a int"),
        ({"parts": [{}]}, r"it.parts\[0\] lacks the key 'size'"),
        ({"parts": [7]}, r"it.parts\[0\] is 7, not a group of settings"),
        ({"named": {"a": {"size": 1, "share": float("nan")}}}, "it.named.a.share is nan"),
        ({"note": 5}, "it.note is 5, not a str"),
        ({"name": ["x" * 99]}, r"it.name is \['x+\.\.\., not a str"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Outer, {**GOOD, **change}, "it", ConfigError)


def test_a_missing_key_and_no_group_at_all() -> None:
    with pytest.raises(DataError, match="it lacks the key 'name'"):
        build(Outer, {key: GOOD[key] for key in GOOD if key != "name"}, "it", DataError)
    with pytest.raises(DataError, match=r"it is \[\], not a group of settings"):
        build(Outer, [], "it", DataError)
