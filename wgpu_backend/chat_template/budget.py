"""What a template may use up: time, text and memory, and what an operation is about to take.

A template comes with a model from strangers and runs in this process, so nothing it does may take
unbounded time or memory in one step. Steps that make much of little (padding, joining, repeating)
are estimated before they run; every result is charged after.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from wgpu_backend.errors import TemplateError

Value = Any
"""Whatever a template computes."""

_MAX_NODES = 1_000_000
_ITEM_BYTES = 64
_CONTAINERS: tuple[type, ...] = (list, tuple, dict)
_NUMBER_CHARS = 32
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one rendering.

    Parameters
    ----------
    seconds : float
        Time, in wall-clock seconds.
    output_chars : int
        Characters of the result, and of any text on the way.
    memory_bytes : int
        Sum over all values that the template makes.
    """

    seconds: float = 2.0
    output_chars: int = 4 << 20
    memory_bytes: int = 160 << 20


class Budget:
    """What is left of the limits during one rendering.

    Parameters
    ----------
    limits : Limits
        What there is at the start; the clock starts now.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + limits.seconds
        self._bytes_left = limits.memory_bytes

    def tick(self) -> None:
        """Check the clock; called wherever a template can repeat itself."""
        if time.monotonic() > self._deadline:
            raise TemplateError(f"chat template: still running, needs to end in "
                                f"{self._limits.seconds:g} s")  # fmt: skip

    def allow(self, chars: int) -> None:
        """Refuse a text that would be too long."""
        if chars > self._limits.output_chars:
            raise TemplateError(
                f"chat template: makes a text of {chars} characters, needs at most "
                f"{self._limits.output_chars}"
            )

    def allow_text(self, value: object) -> None:
        """Refuse a value whose text would be too long."""
        if not isinstance(value, str):
            self.allow(self.text_size(value))

    def charge(self, value: Value) -> Value:
        """Charge for a value that the template made, and return it."""
        nbytes = sys.getsizeof(value)
        if isinstance(value, _CONTAINERS):
            nbytes += _ITEM_BYTES * self._count_nodes(cast("object", value))
        self._bytes_left -= nbytes
        if self._bytes_left < 0:
            raise TemplateError(
                f"chat template: makes more than {self._limits.memory_bytes} bytes of values, "
                "needs fewer"
            )
        return cast("object", value)

    def text_size(self, value: object) -> int:
        """Estimate the characters of a value's text, stopping where it is too long anyway."""
        cap = self._limits.output_chars
        total, stack = 0, [value]
        while stack and total <= cap:
            item = stack.pop()
            total += len(item) if isinstance(item, str | bytes) else _NUMBER_CHARS
            stack.extend(_children(item))
        return total

    def _count_nodes(self, value: object) -> int:
        """Count the parts of a value, shared ones each time: comparing it takes that long."""
        total, stack = 0, [value]
        while stack:
            self.tick()
            children = _children(stack.pop())
            total += len(children)
            if total > _MAX_NODES:
                raise TemplateError(
                    f"chat template: makes a value of over {_MAX_NODES} parts, needs fewer"
                )
            stack += [child for child in children if isinstance(child, _CONTAINERS)]
        return total


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return [*items.keys(), *items.values()]
    return list(cast("list[object]", value)) if isinstance(value, list | tuple) else []


Estimate = Callable[..., int]
"""Characters that an operation makes, from the text it works on and its arguments."""


def _padded(text: str, width: int = 80, *_: object) -> int:
    return max(len(text), width)


def _replaced(text: str, old: str, new: str, count: int | None = None) -> int:
    del count
    return len(text) + text.count(old) * len(new)


def _indented(text: str, width: int | str = 4, *_: object, **__: object) -> int:
    return len(text) + (text.count("\n") + 1) * (width if isinstance(width, int) else len(width))


def _expanded(text: str, tabsize: int = 8) -> int:
    return len(text) + text.count("\t") * abs(tabsize)


def _rounded(_: str, precision: int = 0, method: str = "common") -> int:
    del method
    return abs(precision) << 14  # by way of 10 ** precision


def _listed(_: str, count: int, fill: object = None) -> int:
    del fill
    return abs(count) * _ITEM_BYTES


def _formatted(text: str, *args: object, **kwargs: object) -> int:
    """Bound what ``%`` or ``str.format`` make, as if each field showed the largest argument."""
    widths = sum(int(digits[:9]) for digits in _DIGITS.findall(text))
    fields = text.count("%") + text.count("{") + text.count("*")
    return len(text) + widths + fields * max(map(_shown, [*args, *kwargs.values()]), default=0)


def _shown(value: object) -> int:
    """Length of an argument as shown, or as it widens another field, whichever is longer."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return max(abs(value), _NUMBER_CHARS)
    if isinstance(value, Mapping | list | tuple):
        items = _children(dict(cast("Mapping[Any, Any]", value))) if isinstance(
            value, Mapping
        ) else _children(cast("object", value))  # fmt: skip
        return sum(map(_shown, items)) + _NUMBER_CHARS
    return _NUMBER_CHARS


ESTIMATES: Mapping[str, Estimate] = {
    "center": _padded,
    "ljust": _padded,
    "rjust": _padded,
    "zfill": _padded,
    "replace": _replaced,
    "indent": _indented,
    "expandtabs": _expanded,
    "format": _formatted,
    "format_map": _formatted,
    "round": _rounded,
    "batch": _listed,
    "slice": _listed,
}
"""Operations, filters and methods of text alike, that make much of little."""
