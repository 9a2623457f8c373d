"""The decoding strategies: one file for each, found by name.

A strategy is a generator function `(batch, config)` over one batch of texts of one length: it yields a `State` after
every step, and asks the network by `yield from batch.predict(...)` (see `base`).
Third parties add one through the entry point group `unembed.strategies`. Names are known without importing torch.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from unembed.errors import ConfigError

if TYPE_CHECKING:
    from unembed.decode.strategies.base import Strategy

GROUP = "unembed.strategies"
BUILT_IN = ("sequential", "euler", "remask", "two-stage", "confidence", "entropy")


def names() -> tuple[str, ...]:
    """All strategies, the built-in ones first."""
    return BUILT_IN + tuple(sorted(set(_third_party()) - set(BUILT_IN)))


def load(name: str) -> Strategy:
    """The strategy of that name."""
    if name in BUILT_IN:
        strategy: Strategy = import_module(f"{__name__}.{name.replace('-', '_')}").decode
        return strategy
    if name in _third_party():
        added: Strategy = _third_party()[name].load()
        return added
    raise ConfigError(f"no strategy named {name!r}: choose one of {', '.join(names())}")


@cache
def _third_party() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
