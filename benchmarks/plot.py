"""Charts as SVG text, without a library: lines and ratios, both over logarithmic axes.

A picture is one or several panels next to each other, of any measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 440, 320
LEFT, RIGHT, TOP, BOTTOM = 66, 18, 40, 82
ROW = 26
# Okabe and Ito's colours, which people with colour blindness tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK, FAINT = "#333333", "#dddddd"


@dataclass(frozen=True, slots=True)
class Series:
    """Points joined by a line.

    Parameters
    ----------
    name : str
    points : sequence of (float, float)
        x and y, both above 0.
    dashed : bool
        For what is no measurement.
    """

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Spread:
    """A measured ratio: its median between its smallest and its largest value.

    Parameters
    ----------
    name, group : str
        What is compared, and with what; a group has a colour.
    low, middle, high : float
    """

    name: str
    group: str
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic scale from values to pixels.

    Parameters
    ----------
    low, high : float
        Values at its ends.
    start, end : float
        Pixels at its ends.
    base : int
        Ticks are at powers of 2, or at 1, 2 and 5 times powers of 10.
    """

    low: float
    high: float
    start: float
    end: float
    base: int = 10

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values between the ends, at most nine."""
        if self.base == 2:
            first, last = (math.log2(v) for v in (self.low, self.high))
            found = [2.0**power for power in range(math.ceil(first), math.floor(last) + 1)]
        else:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = [step * 10.0**power for power in powers for step in (1, 2, 5)]
            found = [v for v in every if self.low * 0.999 <= v <= self.high * 1.001]
            if len(found) > 9:
                found = [v for v in found if math.log10(v) % 1 < 1e-9]
        return found[:: -(-len(found) // 9)] if found else []


def axis(values: Sequence[float], start: float, end: float, base: int = 10) -> Axis:
    """Make an axis with a little room around values above 0."""
    low, high = min(values), max(values)
    room = max(1.15, (high / low) ** 0.05)
    return Axis(low / room, high * room, start, end, base)


def number(value: float) -> str:
    """Format a round value in few letters: 0.05, 20, 4k."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}k"
    return f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.0e}"


def lines(title: str, x_name: str, y_name: str, series: Sequence[Series]) -> str:
    """Draw a panel with a line for each series; x ticks are powers of two."""
    points = [point for each in series for point in each.points]
    if not points:
        return _text(LEFT, TOP, f"{title}: nothing measured")
    x = axis([p[0] for p in points], LEFT, WIDTH - RIGHT, 2)
    y = axis([p[1] for p in points], HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 22, title, bold=True), *_grid(x, y, x_name, y_name)]
    for index, each in enumerate(series):
        parts += _line(each, COLOURS[index % len(COLOURS)], x, y)
        column, row = index % 2, index // 2
        place = LEFT + column * (WIDTH - LEFT) / 2, HEIGHT - 26 + row * 15
        parts += _legend(*place, each.name, COLOURS[index % len(COLOURS)])
    return "\n".join(parts)


def _grid(x: Axis, y: Axis, x_name: str, y_name: str) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for value in x.ticks():
        yield _rule(x.at(value), TOP, x.at(value), bottom, FAINT)
        yield _text(x.at(value), bottom + 15, number(value), anchor="middle")
    for value in y.ticks():
        yield _rule(LEFT, y.at(value), WIDTH - RIGHT, y.at(value), FAINT)
        yield _text(LEFT - 6, y.at(value) + 4, number(value), anchor="end")
    yield _text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, x_name, anchor="middle")
    yield (
        f'<g transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)">'
        f"{_text(0, 0, y_name, anchor='middle')}</g>"
    )


def _line(series: Series, colour: str, x: Axis, y: Axis) -> Iterator[str]:
    places = [(x.at(a), y.at(b)) for a, b in series.points]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    dash = ' stroke-dasharray="5 4"' if series.dashed else ""
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    if not series.dashed:
        for a, b in places:
            yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>'


def ratios(title: str, name: str, spreads: Sequence[Spread]) -> tuple[str, int]:
    """Draw a panel of medians with whiskers from least to most, and return its height.

    A line marks 1: right of it the first side is faster.
    """
    labels = list(dict.fromkeys(s.name for s in spreads))
    groups = list(dict.fromkeys(s.group for s in spreads))
    left, bottom = 210, TOP + ROW * len(labels)
    x = axis([1.0, *(v for s in spreads for v in (s.low, s.high))], left, WIDTH * 1.5 - RIGHT)
    parts = [_text(12, 22, title, bold=True), _text(left, bottom + 36, name)]
    for value in x.ticks():
        colour = INK if value == 1 else FAINT
        parts.append(_rule(x.at(value), TOP, x.at(value), bottom, colour))
        parts.append(_text(x.at(value), bottom + 15, f"{number(value)}×", anchor="middle"))
    parts += [_text(12, TOP + ROW * (i + 0.65), label) for i, label in enumerate(labels)]
    for spread in spreads:
        group = groups.index(spread.group)
        height = TOP + ROW * (labels.index(spread.name) + (group + 1) / (len(groups) + 1))
        parts += _whisker(spread, x, height, COLOURS[group % len(COLOURS)])
    for index, group in enumerate(groups):
        parts += _legend(left, bottom + 54 + 16 * index, group, COLOURS[index % len(COLOURS)])
    return "\n".join(parts), bottom + 60 + 16 * len(groups)


def _whisker(spread: Spread, x: Axis, height: float, colour: str) -> Iterator[str]:
    yield _rule(x.at(spread.low), height, x.at(spread.high), height, colour, 2)
    yield f'<circle cx="{x.at(spread.middle):.1f}" cy="{height:.1f}" r="4" fill="{colour}"/>'


def picture(panels: Sequence[str], width: int = WIDTH, height: int = HEIGHT) -> str:
    """Assemble an SVG file of panels of one size, two in a row."""
    columns, rows = min(len(panels), 2), -(-len(panels) // 2)
    total = columns * width, rows * height
    placed = (
        f'<g transform="translate({i % 2 * width} {i // 2 * height})">\n{panel}\n</g>'
        for i, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total[0]}" height="{total[1]}" '
        f'viewBox="0 0 {total[0]} {total[1]}" font-family="sans-serif" font-size="12" '
        f'fill="{INK}">\n<rect width="{total[0]}" height="{total[1]}" fill="white"/>\n'
        + "\n".join(placed)
        + "\n</svg>\n"
    )


def _legend(x: float, y: float, name: str, colour: str) -> Iterator[str]:
    yield f'<rect x="{x:.1f}" y="{y - 8:.1f}" width="14" height="4" fill="{colour}"/>'
    yield _text(x + 20, y, name)


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width:g}"/>'
    )
