"""Limits of a template's time, text and memory.

A template comes with a model from an untrusted source and runs in this process, so no step of it
may take unbounded time or memory. Steps that make much of little (padding, joining, repeating) are
estimated before they run, in ``estimates.py``; every result is charged afterwards.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, MethodType
from typing import Any, NamedTuple, cast

from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Namespace

from wgpu_backend.errors import TemplateError

Value = Any
"""Any value that a template computes."""

_MAX_INTEGER_BITS = 1 << 14
# A pass over these takes a tenth of a second, during which the clock is not checked.
_MAX_PARTS = 1 << 18
_MAX_DEPTH = 200
_ITEM_BYTES = 64
# Memory of a character that is an item of a list, or a short piece of text.
_CHAR_BYTES = 112
# Characters of the text of a value that is neither a string nor an integer, roughly at most.
_VALUE_CHARS = 64
_EMPTY: dict[object, object] = {}
_VIEWS: tuple[type, ...] = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_SEQUENCES: Any = (list, tuple, set, frozenset, *_VIEWS)
_CONTAINERS: Any = (dict, MappingProxyType, *_SEQUENCES)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one rendering.

    Parameters
    ----------
    seconds : float
        Processor time of the rendering thread; waiting for a busy machine does not count.
    output_chars : int
        Characters of the result, and of any intermediate text.
    memory_bytes : int
        Sum over all values that the template makes.
    """

    seconds: float = 2.0
    output_chars: int = 4 << 20
    memory_bytes: int = 96 << 20


class Size(NamedTuple):
    """The size of a value, with shared parts counted each time.

    Parameters
    ----------
    parts : int
        Items, keys and values at every depth.
    chars : int
        Characters of the texts among them.
    depth : int
        Levels of nested containers, not counting the outermost.
    """

    parts: int
    chars: int
    depth: int


class Budget:
    """The remainder of the limits during one rendering.

    Parameters
    ----------
    limits : Limits
        The limits; the clock starts now, in the thread that renders.

    Attributes
    ----------
    known : dict
        Sizes of containers that were measured before, by identity; the caller keeps them alive
        and unchanged.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deadline = time.thread_time() + limits.seconds
        self._bytes_left = limits.memory_bytes
        self.known: dict[int, Size] = {}

    def tick(self) -> None:
        """Check the clock; called wherever a template can repeat itself."""
        if time.thread_time() > self._deadline:
            raise TemplateError(f"chat template: still running, needs to end in "
                                f"{self._limits.seconds:g} s")  # fmt: skip

    def allow(self, chars: int) -> None:
        """Raise if a text would be too long."""
        if chars > self._limits.output_chars:
            raise TemplateError(
                f"chat template: makes a text of {_show_count(chars)} characters, needs at most "
                f"{self._limits.output_chars}"
            )

    def allow_text(self, value: object) -> None:
        """Raise if the text of a value would be too long; a string is not checked."""
        if not isinstance(value, str):
            size = self.text_size(value)
            self.allow(size)
            # Every character may be escaped, as six characters of four bytes.
            self.reserve(size * 24)

    def allow_bits(self, bits: int) -> None:
        """Raise if an integer would be too large."""
        if bits > _MAX_INTEGER_BITS:
            raise TemplateError(
                f"chat template: makes a number of {_show_count(bits)} bits, "
                f"needs at most {_MAX_INTEGER_BITS}"
            )

    def allow_steps(self, what: str, steps: int) -> None:
        """Raise if a search would compare too many characters."""
        most = self._limits.output_chars << 6
        if steps > most:
            raise TemplateError(
                f"chat template: {what} compares {_show_count(steps)} characters, "
                f"needs at most {most}"
            )

    def reserve(self, nbytes: int) -> None:
        """Raise if a step would need more memory than is left, without taking any."""
        if nbytes > self._bytes_left:
            raise TemplateError(
                f"chat template: makes more than {self._limits.memory_bytes} bytes of values, "
                f"needs fewer: a step takes {_show_count(nbytes)} of the "
                f"{max(0, self._bytes_left)} left"
            )

    def reserve_items(self, value: object) -> None:
        """Raise if splitting a string into characters would need too much memory."""
        if isinstance(value, str):
            self.reserve(len(value) * _CHAR_BYTES)

    def take(self, nbytes: int) -> None:
        """Take memory for a value that was made."""
        self.reserve(nbytes)
        self._bytes_left -= nbytes

    def charge(self, value: Value) -> Value:
        """Charge for a value that the template made; return it, with an iterator metered."""
        self.tick()
        nbytes = sys.getsizeof(value)
        if isinstance(value, str):
            self.allow(len(value))
        elif isinstance(value, int):
            self.allow_bits(value.bit_length())
        elif isinstance(value, _CONTAINERS):
            nbytes += _ITEM_BYTES * self.measure(cast("object", value)).parts
        elif isinstance(value, Iterator) and not isinstance(value, Metered | LoopContext):
            value = Metered(cast("Iterator[object]", value), self)
        self.take(nbytes)
        return cast("object", value)

    def text_size(self, value: object) -> int:
        """Estimate the characters of a value's text, stopping when it is too long anyway."""
        cap = self._limits.output_chars
        total, stack = 0, [value]
        while stack and total <= cap:
            item = stack.pop()
            if isinstance(item, str):
                # Within a list, a text has two quotes, a comma and a space.
                total += len(item) + 4
            elif isinstance(item, int):
                # A decimal digit is over three bits, so this is at least the number of digits.
                total += 8 + item.bit_length() // 3
            else:
                total += _VALUE_CHARS
                stack.extend(_displayed_parts(item))
        return total

    def measure(self, value: object) -> Size:
        """Measure a container.

        Raises
        ------
        TemplateError
            Comparing or copying it would take too long.
        """
        total = Size(0, 0, 0)
        level, above = [value], 0
        while level:
            self.tick()
            below: list[object] = []
            for item in level:
                size = self.known.get(id(item)) or _measure_shallow(item, below)
                parts, chars = total.parts + size.parts, total.chars + size.chars
                total = Size(parts, chars, max(total.depth, above + size.depth))
                self._check_size(total)
            level, above = below, above + 1
        return total

    def _check_size(self, size: Size) -> None:
        most = Size(_MAX_PARTS, self._limits.output_chars << 2, _MAX_DEPTH)
        for name, there, limit in zip(("parts", "characters", "levels"), size, most, strict=True):
            if there > limit:
                raise TemplateError(
                    f"chat template: has a value of {there} {name}, needs at most {limit}"
                )


def _show_count(count: int) -> str:
    """Format a count for a message; a template may request one of thousands of digits."""
    return str(count) if count < 10**18 else "more than 10**18"


class Metered:
    """An iterator that checks the clock and charges for each item."""

    __slots__ = ("_budget", "_items")

    def __init__(self, items: Iterable[object], budget: Budget) -> None:
        self._items = iter(items)
        self._budget = budget

    def __iter__(self) -> Metered:
        return self

    def __next__(self) -> object:
        return self._budget.charge(next(self._items))


def list_parts(value: object) -> list[object]:
    """List the items of a container or the keys and values of a mapping, or nothing."""
    if isinstance(value, dict | MappingProxyType):
        items = cast("Mapping[object, object]", value)
        return [*items.keys(), *items.values()]
    if isinstance(value, _SEQUENCES):
        return list(cast("Iterable[object]", value))
    return []


def _measure_shallow(item: object, below: list[object]) -> Size:
    """Measure a container without its inner containers, which are added to `below`."""
    children = list_parts(item)
    below += [child for child in children if isinstance(child, _CONTAINERS)]
    return Size(len(children), sum(len(c) for c in children if isinstance(c, str)), 0)


def _displayed_parts(value: object) -> list[object]:
    """List the values that the text of a value contains, apart from its type."""
    if isinstance(value, Namespace):
        return [cast("object", object.__getattribute__(value, "_Namespace__attrs"))]
    if isinstance(value, MethodType):
        return [value.__self__, value.__name__]
    if isinstance(value, Macro):
        return [value.name]
    return list_parts(value)
