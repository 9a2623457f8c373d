"""The report's charts as inline SVG: no script and no style of their own; colours and letters come from the page.

All are 440 units wide, so that their letters can still be read on a phone. What a chart says is also its description.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 440
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 30, 40
HEIGHT = 250
ROW = 26  # height of a horizontal bar with its space
LETTER = 7.5  # width of a letter of a label, about; system fonts differ


@dataclass(frozen=True, slots=True)
class Group:
    """Values under one name; `style` is its class on the page: `real`, `random` or `shuffled`."""

    name: str
    style: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Dot:
    """A share with its interval, at a name or a place between 0 and 1."""

    label: str
    value: float
    low: float
    high: float
    n: int
    x: float = 0.0


@dataclass(frozen=True, slots=True)
class Bar:
    """`part` of `whole`, and what is written behind it."""

    label: str
    part: float
    whole: float
    text: str


def histogram(groups: Sequence[Group], *, title: str, x_label: str, bins: int = 24) -> Markup:
    """How values spread: the first group filled, the others as outlines, each as a share of its own number.

    A group of one value is drawn as a line at its place.
    """
    groups = [group for group in groups if len(group.values)]
    values = [value for group in groups for value in group.values]
    low, high = math.floor(min(values) * 10) / 10, max(1.0, math.ceil(max(values) * 10) / 10)
    shares = [_shares(group.values, low, high, bins) if len(group.values) > 1 else [] for group in groups]
    top = _nice(max((height for share in shares for height in share), default=1.0))
    x, y = _scale(low, high, LEFT, WIDTH - RIGHT), _scale(0, top, HEIGHT - BOTTOM, TOP)
    step = (high - low) / bins
    ticks = [round(low + 0.2 * k, 1) for k in range(int((high - low) / 0.2 + 1e-9) + 1)]
    parts = [*_grid(y, [0, top / 2, top]), *_x_axis([(x(tick), f"{tick:g}") for tick in ticks], x_label)]
    for group, share in zip(groups, shares, strict=True):
        if not share:
            parts.append(_line(f"area {group.style}", x(group.values[0]), y(0), x(group.values[0]), y(top)))
            continue
        outline = [f"{x(low):.1f},{y(0):.1f}"]
        for number, height in enumerate(share):
            left, right = x(low + number * step), x(low + (number + 1) * step)
            outline += [f"{left:.1f},{y(height):.1f}", f"{right:.1f},{y(height):.1f}"]
        outline.append(f"{x(high):.1f},{y(0):.1f}")
        parts.append(Markup('<polygon class="area {}" points="{}"/>').format(group.style, " ".join(outline)))
    parts += _legend([(group.name, group.style) for group in groups])
    means = ", ".join(f"{group.name} {sum(group.values) / len(group.values):.2f}" for group in groups)
    return _svg(HEIGHT, f"{title}. Means: {means}.", parts)


def by_group(dots: Sequence[Dot], *, title: str, x_label: str, chance: float | None = None) -> Markup:
    """A share for each group with its interval, and a line at what chance gives."""
    place = (WIDTH - LEFT - RIGHT) / len(dots)
    y = _scale(0, 1, HEIGHT - BOTTOM, TOP)
    centres = [LEFT + place * (number + 0.5) for number in range(len(dots))]
    names = [(x, dot.label) for x, dot in zip(centres, dots, strict=True)]
    parts = [*_grid(y, [0, 0.25, 0.5, 0.75, 1]), *_x_axis(names, x_label)]
    if chance is not None:
        parts += [_line("control", LEFT, y(chance), WIDTH - RIGHT, y(chance))]
        parts += [_text(WIDTH - RIGHT, y(chance) - 5, f"shuffled {100 * chance:.0f} %", "end", "small")]
    for x, dot in zip(centres, dots, strict=True):
        parts += _whisker(x, y, dot)
        parts.append(_text(x, y(dot.high) - 8, f"{100 * dot.value:.0f} %", "middle", "value"))
        parts.append(_text(x, TOP - 14, f"n = {dot.n}", "middle", "small"))
    said = "; ".join(f"{dot.label}: {dot.value:.0%} of {dot.n}" for dot in dots)
    return _svg(HEIGHT, f"{title}. {said}.", parts)


def calibration(dots: Sequence[Dot], *, title: str) -> Markup:
    """What was predicted against what was so; on the diagonal both agree."""
    x, y = _scale(0, 1, LEFT, WIDTH - RIGHT), _scale(0, 1, HEIGHT - BOTTOM, TOP)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    parts = [*_grid(y, ticks), *_x_axis([(x(tick), f"{tick:.0%}") for tick in ticks], "estimated without the original")]
    parts.append(_line("control", x(0), y(0), x(1), y(1)))
    parts.append(_text(LEFT - 38, TOP - 14, "true", "start", "small"))
    for dot in dots:
        parts += _whisker(x(dot.x), y, dot)
    said = "; ".join(f"estimated {dot.x:.0%}, true {dot.value:.0%}" for dot in dots)
    return _svg(HEIGHT, f"{title}. {said}.", parts)


def bars(rows: Sequence[Bar], *, title: str) -> Markup:
    """Horizontal bars: the whole pale, the part of it strong."""
    label = max(LETTER * (len(row.label) + sum(map(str.isupper, row.label)) / 4) for row in rows) + 12
    behind = max(LETTER * len(row.text) for row in rows) + 8
    x = _scale(0, max(row.whole for row in rows) or 1, label, WIDTH - behind)
    parts = []
    for number, row in enumerate(rows):
        y = ROW * number + 6
        parts.append(_text(0, y + 13, row.label, "start", "label"))
        parts.append(_rect("whole", label, y, x(row.whole) - label))
        parts.append(_rect("part", label, y, x(row.part) - label))
        parts.append(_text(x(row.whole) + 8, y + 13, row.text, "start", "value"))
    said = "; ".join(f"{row.label}: {row.text}" for row in rows)
    return _svg(ROW * len(rows) + 6, f"{title}. {said}.", parts)


def _svg(height: int, says: str, parts: Sequence[Markup]) -> Markup:
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, says)
    return Markup("\n").join([head, *parts, Markup("</svg>")])


def _shares(values: Sequence[float], low: float, high: float, bins: int) -> list[float]:
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    return [count / len(values) for count in counts]


def _grid(y: Callable[[float], float], ticks: Sequence[float]) -> list[Markup]:
    parts = []
    for tick in ticks:
        name = f"{tick:.0%}" if tick * 100 % 1 < 1e-9 else f"{tick:.1%}"
        parts.append(_line("grid", LEFT, y(tick), WIDTH - RIGHT, y(tick)))
        parts.append(_text(LEFT - 6, y(tick) + 4, name, "end", "small"))
    return parts


def _x_axis(ticks: Sequence[tuple[float, str]], label: str) -> list[Markup]:
    marks = [_text(x, HEIGHT - BOTTOM + 16, name, "middle", "small") for x, name in ticks]
    return [*marks, _text(WIDTH - RIGHT, HEIGHT - 6, label, "end", "small")]


def _legend(names: Sequence[tuple[str, str]]) -> list[Markup]:
    parts, x = [], float(LEFT)
    for name, style in names:
        parts.append(Markup('<rect class="area {}" x="{:.0f}" y="8" width="12" height="10"/>').format(style, x))
        parts.append(_text(x + 17, 17, name, "start", "small"))
        x += 36 + LETTER * len(name)
    return parts


def _whisker(x: float, y: Callable[[float], float], dot: Dot) -> list[Markup]:
    point = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="4"/>').format(x, y(dot.value))
    return [_line("range", x, y(dot.low), x, y(dot.high)), point]


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    shape = Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>')
    return shape.format(style, x1, y1, x2, y2)


def _rect(style: str, x: float, y: float, width: float) -> Markup:
    shape = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="16" rx="2"/>')
    return shape.format(style, x, y, max(width, 0.0))


def _text(x: float, y: float, text: str, anchor: str, style: str) -> Markup:
    shape = Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    return shape.format(style, x, y, anchor, escape(text))


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (min(max(value, low), high) - low) / (high - low) * (end - start)


def _nice(value: float) -> float:
    """The next round share above a value: 5 %, 10 %, 20 %, ..."""
    return next(step for step in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0) if step >= value - 1e-9)
