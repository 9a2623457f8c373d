"""The report's charts as inline SVG: no script, no colours of their own (the page's style sheet paints the classes).

Each is told in its caption as well, so that nothing depends on seeing it. Every string is escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

WIDTH, LEFT, RIGHT = 640, 52, 20
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Mark:
    """A value from 0 to 1 with its interval, and what it is of."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two counts of one thing: how many there are, how many of these came back."""

    label: str
    whole: int
    part: int


def scale_bar(measured: Mark, controls: Sequence[Mark]) -> str:
    """One line from 0 to 100 %: what was measured with its interval above, the controls below."""
    x = _scale(0, 1, LEFT, WIDTH - RIGHT)
    parts = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="42" y2="42"/>']
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="36" y2="48"/>')
        parts.append(_text(x(tick), 86, f"{tick:.0%}", "small", "middle"))
    parts.append(_interval(x, measured, 42, "one"))
    parts.append(_text(_inside(x(measured.value), measured.label), 22, measured.label, "strong", "middle"))
    for number, control in enumerate(controls):
        parts.append(f'<circle class="two hollow" cx="{x(control.value):.1f}" cy="42" r="4.5"/>')
        if number == 0:
            parts.append(_text(_inside(x(control.value), control.label), 66, control.label, "small", "middle"))
    said = ", ".join(f"{mark.label} {mark.value:.0%}" for mark in (measured, *controls))
    return _svg(96, parts, said)


def histogram(series: Sequence[tuple[str, Sequence[float]]], low: float, high: float, label: str, said: str) -> str:
    """Shares of the values in twenty classes: bars for the first series, an outline for each other."""
    height, top, bottom = 250, 34, 44
    edges = np.linspace(low, high, 21)
    shares = [_shares(values, edges) for _, values in series]
    most = max(float(share.max()) for share in shares) or 1.0
    x, y = _scale(low, high, LEFT, WIDTH - RIGHT), _scale(0, most, height - bottom, top)
    parts = _frame(x, y, [0, most / 2, most], edges[::5].tolist(), height - bottom)
    for left, right, share in zip(edges[:-1], edges[1:], shares[0], strict=True):
        parts.append(
            f'<rect class="one" x="{x(left) + 1:.1f}" y="{y(share):.1f}" width="{x(right) - x(left) - 2:.1f}" '
            f'height="{y(0) - y(share):.1f}"/>'
        )
    for number, share in enumerate(shares[1:]):
        points = [(x(low), y(0))]
        for left, right, value in zip(edges[:-1], edges[1:], share, strict=True):
            points += [(x(left), y(value)), (x(right), y(value))]
        parts.append(_line([*points, (x(high), y(0))], ("two", "three")[number % 2]))
    parts += _legend([name for name, _ in series])
    parts.append(_text(WIDTH - RIGHT, height - 6, label, "small", "end"))
    return _svg(height, parts, said)


def columns(series: Sequence[tuple[str, Sequence[Mark]]], label: str, said: str) -> str:
    """Values with intervals over classes, one series beside the other; the first has the labels."""
    height, top, bottom = 260, 34, 56
    y = _scale(0, 1, height - bottom, top)
    marks = series[0][1]
    step = (WIDTH - LEFT - RIGHT) / max(len(marks), 1)
    parts = _frame(lambda value: value, y, [0, 0.25, 0.5, 0.75, 1], [], height - bottom)
    for place, mark in enumerate(marks):
        middle = LEFT + (place + 0.5) * step
        parts.append(_text(middle, height - bottom + 18, mark.label, "small", "middle"))
        parts.append(_text(middle, height - bottom + 33, mark.note, "small", "middle"))
    for number, (_, values) in enumerate(series):
        points = [(LEFT + (place + 0.5) * step, y(mark.value)) for place, mark in enumerate(values)]
        kind = ("one", "two", "three")[number % 3]
        parts.append(_line(points, kind))
        for (at, level), mark in zip(points, values, strict=True):
            if mark.low is not None and mark.high is not None:
                parts.append(_line([(at, y(mark.low)), (at, y(mark.high))], f"{kind} whisker"))
            parts.append(f'<circle class="{kind}" cx="{at:.1f}" cy="{level:.1f}" r="4"/>')
    parts += _legend([name for name, _ in series])
    parts.append(_text(WIDTH - RIGHT, height - 4, label, "small", "end"))
    return _svg(height, parts, said)


def shares(marks: Sequence[Mark], said: str) -> str:
    """Horizontal bars from 0 to 100 % of the longest round share, with intervals."""
    most = max((mark.high if mark.high is not None else mark.value for mark in marks), default=1.0)
    end = next(limit for limit in (0.05, 0.1, 0.25, 0.5, 1.0, max(1.0, most)) if limit >= most)
    left, row = 190, 26
    x = _scale(0, end, left, WIDTH - RIGHT - 60)
    parts = []
    for place, mark in enumerate(marks):
        middle = 14 + place * row
        parts.append(_text(left - 10, middle + 4, mark.label, "label", "end"))
        width = x(mark.value) - left
        parts.append(f'<rect class="one" x="{left}" y="{middle - 7}" width="{max(width, 1):.1f}" height="14" rx="2"/>')
        if mark.low is not None and mark.high is not None:
            parts.append(_line([(x(mark.low), middle), (x(mark.high), middle)], "ink whisker"))
        parts.append(_text(WIDTH - RIGHT, middle + 4, mark.note, "small", "end"))
    return _svg(14 + len(marks) * row, parts, said)


def pairs(counts: Sequence[Pair], said: str) -> str:
    """For each thing a pale bar of all and a dark one of the part that came back."""
    most = max((pair.whole for pair in counts), default=1) or 1
    left, row = 190, 26
    x = _scale(0, most, left, WIDTH - RIGHT - 90)
    parts = []
    for place, pair in enumerate(counts):
        middle = 14 + place * row
        parts.append(_text(left - 10, middle + 4, pair.label, "label", "end"))
        for kind, value in (("pale", pair.whole), ("one", pair.part)):
            width = x(value) - left
            parts.append(f'<rect class="{kind}" x="{left}" y="{middle - 7}" width="{width:.1f}" height="14" rx="2"/>')
        parts.append(_text(WIDTH - RIGHT, middle + 4, f"{pair.part:,} of {pair.whole:,}", "small", "end"))
    return _svg(14 + len(counts) * row, parts, said)


def against(points: Sequence[tuple[float, float, float, float]], across: str, up: str, said: str) -> str:
    """Points (x, y, low, high) from 0 to 1 on a square, with the diagonal where both are the same."""
    height, top, bottom, right = 330, 20, 44, 360
    x, y = _scale(0, 1, LEFT, right), _scale(0, 1, height - bottom, top)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    parts = [*_frame(x, y, ticks, ticks, height - bottom, right), _line([(x(0), y(0)), (x(1), y(1))], "diagonal")]
    for across_value, value, low, high in points:
        at = x(across_value)
        parts.append(_line([(at, y(low)), (at, y(high))], "one whisker"))
        parts.append(f'<circle class="one" cx="{at:.1f}" cy="{y(value):.1f}" r="4"/>')
    parts.append(_text(right, height - 6, across, "small", "end"))
    parts.append(_text(LEFT, 11, up, "small", "start"))
    return _svg(height, parts, said, right + RIGHT)


def _shares(values: Sequence[float], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Share of the values in each class; those beyond the ends count in the last."""
    if not len(values):
        return np.zeros(len(edges) - 1)
    found = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
    return np.asarray(found, dtype=np.float64)


def _frame(
    x: Scale, y: Scale, up: Sequence[float], across: Sequence[float], floor: float, right: int = WIDTH - RIGHT
) -> list[str]:
    """Lines and numbers of the axes."""
    parts = []
    for tick in up:
        kind = "axis" if tick == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(_text(LEFT - 8, y(tick) + 4, f"{tick:.0%}", "small", "end"))
    parts += [_text(x(tick), floor + 18, f"{tick:g}", "small", "middle") for tick in across]
    return parts


def _interval(x: Scale, mark: Mark, y: float, kind: str) -> str:
    low, high = (mark.value if edge is None else edge for edge in (mark.low, mark.high))
    bar = (
        f'<rect class="{kind} soft" x="{x(low):.1f}" y="{y - 7}" width="{max(x(high) - x(low), 2):.1f}" height="14" '
        'rx="7"/>'
    )
    return f'{bar}<circle class="{kind}" cx="{x(mark.value):.1f}" cy="{y}" r="6"/>'


def _legend(names: Sequence[str]) -> list[str]:
    if len(names) < 2:
        return []
    parts, x = [], float(LEFT)
    for number, name in enumerate(names):
        kind = ("one", "two", "three")[number % 3]
        parts.append(f'<rect class="{kind} key" x="{x:.0f}" y="6" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 18, 16, name, "small", "start"))
        x += 40 + 6.8 * len(name)
    return parts


def _inside(x: float, label: str) -> float:
    """A middle at which a label does not stick out of the picture."""
    half = 3.9 * len(label)
    return min(max(x, half + 4), WIDTH - half - 4)


def _line(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<polyline class="line {kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _svg(height: float, parts: Sequence[str], said: str, width: int = WIDTH) -> str:
    head = f'<svg viewBox="0 0 {width} {height}" style="max-width: {width}px" role="img" aria-label="{escape(said)}">'
    return "\n".join([head, *parts, "</svg>"])
