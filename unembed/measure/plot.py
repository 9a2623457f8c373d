"""Line charts as plain SVG: no library, no script, readable in light and dark, made from results files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 52
# Told apart by lightness as well as by hue, so that they survive a grey print.
COLOURS = ("#2f6fde", "#d9822b", "#2e9e6b", "#b0489f", "#7a7f87", "#c23b3b")

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 16px; font-weight: 600 }
.small { font-size: 12px; fill: #59636e } .grid { stroke: #d1d9e0; stroke-width: 1 } .back { fill: #ffffff }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round } .band { opacity: .15 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #3d444d } .back { fill: #0d1117 } }
""".strip()


@dataclass(frozen=True, slots=True)
class Point:
    """A measured value with its interval, where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[Point]


def line_chart(series: Sequence[Series], *, title: str, x_label: str, y_label: str, log_x: bool = False) -> str:
    """The chart as an SVG document; the intervals of a series are drawn as a band behind its line."""
    points = [point for one in series for point in one.points]
    if not points:
        raise ValueError("a chart needs at least one point")
    lows = [p.y if p.low is None else p.low for p in points]
    highs = [p.y if p.high is None else p.high for p in points]
    x_ticks = _log_ticks([p.x for p in points]) if log_x else _ticks(min(p.x for p in points), max(p.x for p in points))
    y_ticks = _ticks(min(lows), max(highs))
    place_x = _scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT, log_x)
    place_y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP, False)
    body = [
        *_axes(x_ticks, y_ticks, place_x, place_y),
        *(part for number, one in enumerate(series) for part in _draw(one, number, place_x, place_y)),
        *_legend(series),
        f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>',
        f'<text class="small" x="{WIDTH - RIGHT}" y="{HEIGHT - 12}" text-anchor="end">{escape(x_label)}</text>',
        f'<text class="small" x="{LEFT - 44}" y="{TOP - 10}">{escape(y_label)}</text>',
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    back = f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", back, *body, "</svg>\n"])


def _axes(
    x_ticks: list[float], y_ticks: list[float], place_x: Callable[[float], float], place_y: Callable[[float], float]
) -> list[str]:
    parts = []
    for tick in y_ticks:
        y = place_y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for tick in x_ticks:
        x, y = place_x(tick), HEIGHT - BOTTOM + 18
        parts.append(f'<text class="small" x="{x:.1f}" y="{y}" text-anchor="middle">{_number(tick)}</text>')
    return parts


def _draw(one: Series, number: int, place_x: Callable[[float], float], place_y: Callable[[float], float]) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    parts = []
    banded = [(p.x, p.low, p.high) for p in one.points if p.low is not None and p.high is not None]
    if len(banded) > 1:
        edge = [(x, high) for x, _, high in banded] + [(x, low) for x, low, _ in reversed(banded)]
        outline = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in edge)
        parts.append(f'<polygon class="band" fill="{colour}" points="{outline}"/>')
    line = " ".join(f"{place_x(p.x):.1f},{place_y(p.y):.1f}" for p in one.points)
    parts.append(f'<polyline class="line" stroke="{colour}" points="{line}"/>')
    for p in one.points:
        parts.append(f'<circle cx="{place_x(p.x):.1f}" cy="{place_y(p.y):.1f}" r="3" fill="{colour}"/>')
    return parts


def _legend(series: Sequence[Series]) -> list[str]:
    if len(series) < 2:
        return []
    parts, x = [], LEFT + 40.0
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<circle cx="{x:.0f}" cy="{TOP - 14}" r="5" fill="{colour}"/>')
        parts.append(f'<text class="small" x="{x + 9:.0f}" y="{TOP - 10}">{escape(one.name)}</text>')
        x += 26 + 6.6 * len(one.name)
    return parts


def _scale(low: float, high: float, start: float, end: float, log: bool) -> Callable[[float], float]:
    """From values to places on the page."""
    a, b = (math.log(low), math.log(high)) if log else (low, high)
    span = (b - a) or 1.0
    return lambda value: start + ((math.log(value) if log else value) - a) / span * (end - start)


def _ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers that enclose the values."""
    raw = (high - low) / about or abs(high) / about or 1.0
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, max(last, first + 1) + 1)]


def _log_ticks(values: list[float]) -> list[float]:
    """1, 2, 5 of every power of ten that enclose the values; powers alone when those are many."""
    if min(values) <= 0:
        raise ValueError("a logarithmic axis needs values above 0")
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    marks = (1, 2, 5) if high - low <= 3 else (1,)
    every = [m * 10.0**k for k in range(low, high + 1) for m in marks]
    first = max((t for t in every if t <= min(values) * (1 + 1e-9)), default=every[0])
    last = min((t for t in every if t >= max(values) * (1 - 1e-9)), default=every[-1])
    return [t for t in every if first <= t <= last] if first < last else [first, first * 10]


def _number(value: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"
