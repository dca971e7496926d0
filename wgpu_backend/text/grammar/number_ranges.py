"""Bounds of JSON numbers as schemas that the compiler gets right.

llguidance's expression for a range leaves out numbers that are the beginning of a bound, 2.6 under
2.65, and some zeros at the end. It is right for ranges whose ends differ in one decimal place, the
lower included and the upper not. A range with a decimal bound is put together of such ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import lcm
from typing import Any, NamedTuple, cast

Json = dict[str, Any]
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_OTHERS = ("string", "boolean", "null", "array", "object")
_MOST_PLACES = 12  # as far as doubles tell neighbours apart
_LARGEST = 10**9
_NEAR = 8  # decimal places beyond an excluded bound that may end in zeros


class _End(NamedTuple):
    value: Decimal
    included: bool


def number_ranges(schema: Mapping[str, Any]) -> list[Json] | None:
    """Schemas of which a value fits one where it keeps to a schema's bounds.

    Returns
    -------
    list of dict, or None
        None where the bounds can stay as they are: they are none, whole, or bounds of integers.
    """
    kinds = schema.get("type", ["number", *_OTHERS])
    types = cast("list[Any]", [kinds] if isinstance(kinds, str) else kinds)
    given = [name for name in BOUNDS if name in schema]
    if not isinstance(cast("object", types), list) or "number" not in types or not given:
        return None
    values: list[Any] = [schema[name] for name in given]
    if not all(isinstance(value, int | float) and abs(value) < _LARGEST for value in values):
        return None
    exact = [Decimal(repr(value)) for value in values if not isinstance(value, bool)]
    if len(exact) < len(values) or all(value == int(value) for value in exact):
        return None
    ends = {name: _End(v, not name.startswith("ex")) for v, name in zip(exact, given, strict=True)}
    low = max(
        (ends[name] for name in BOUNDS[:2] if name in ends),
        key=lambda end: (end.value, not end.included),
        default=None,
    )
    high = min(
        (ends[name] for name in BOUNDS[2:] if name in ends),
        key=lambda end: (end.value, end.included),
        default=None,
    )
    found = [{"type": "number", **part} for part in _parts(low, high)]
    others = [each for each in types if each in _OTHERS]
    if not found or max(map(_places, exact)) > _MOST_PLACES:
        return None
    return [*found, {"type": others}] if others else found


def number_multiples(schema: Mapping[str, Any]) -> list[Json] | None:
    """Schemas for the multiples of a decimal; None where `multipleOf` can stay as it is.

    The compiler takes 0.25 for a multiple of 0.25, but not 0.5, which has fewer places.
    """
    given = schema.get("multipleOf")
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < _LARGEST:
        return None
    value = Decimal(repr(given))
    places = _places(value)
    if not 2 <= places <= _MOST_PLACES:
        return None
    whole = int(value.scaleb(places))
    return [
        {"multipleOf": _json(Decimal(lcm(whole, 10**fewer)).scaleb(-places))}
        for fewer in range(places + 1)
    ]


def _parts(low: _End | None, high: _End | None) -> Iterator[Json]:
    zero = Decimal(0)
    if low is None or low.value < 0:
        least = None if low is None else _End(-low.value, low.included)
        ceiling = _End(zero, False) if high is None or high.value >= 0 else high
        for part in _positive(_End(-ceiling.value, ceiling.included), least):
            yield _mirrored(part)
    if high is None or high.value > 0 or high == (zero, True):
        floor = _End(zero, True) if low is None or low.value < 0 else low
        yield from _positive(floor, high)


def _mirrored(part: Json) -> Json:
    return {BOUNDS[BOUNDS.index(name) - 2]: -value for name, value in part.items()}


def _positive(low: _End, high: _End | None) -> Iterator[Json]:
    """Parts of a range of numbers from zero on."""
    begin = low.value
    end = begin.to_integral_value("ROUND_CEILING") + 1 if high is None else high.value
    if begin > end or (begin == end and not (low.included and high and high.included)):
        return
    places = max(_places(begin), _places(end))
    if not low.included:
        step = Decimal(1).scaleb(-places)
        yield from _near(begin, step)
        begin += step
    if begin < end:
        yield from _cells(begin, end, places)
    if high is None:
        yield {"minimum": int(end)}
    elif high.included and begin <= end:
        yield {"minimum": _json(end), "maximum": _json(end)}


def _near(bound: Decimal, step: Decimal) -> Iterator[Json]:
    """Numbers above an excluded bound, less than a step away."""
    for _ in range(_NEAR):
        yield _cell(bound + step / 10, bound + step)
        step /= 10
    if bound != int(bound):  # of 1 and 1.01, both excluded, the compiler takes 1
        yield {"exclusiveMinimum": _json(bound), "exclusiveMaximum": _json(bound + step)}


def _cells(low: Decimal, high: Decimal, places: int) -> Iterator[Json]:
    for place in range(places, 0, -1):
        unit = Decimal(1).scaleb(1 - place)
        up = (low / unit).to_integral_value("ROUND_CEILING") * unit
        down = (high / unit).to_integral_value("ROUND_FLOOR") * unit
        if up > down:
            yield _cell(low, high)
            return
        if low < up:
            yield _cell(low, up)
        if down < high:
            yield _cell(down, high)
            yield {"minimum": _json(down), "maximum": _json(down)}  # 2.6, of 2.60 to 2.65
        low, high = up, down
    if low < high:
        yield _cell(low, high)


def _cell(low: Decimal, high: Decimal) -> Json:
    return {"minimum": _json(low), "exclusiveMaximum": _json(high)}


def _places(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _json(value: Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)
