"""What a template may use up: time, text and memory, and what it has left.

A template comes with a model from strangers and runs in this process, so nothing it does may take
unbounded time or memory in one step. Steps that make much of little (padding, joining, repeating)
are estimated before they run, in ``estimates.py``; every result is charged after.
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
"""Whatever a template computes."""

_MAX_INTEGER_BITS = 1 << 14
_MAX_PARTS = (
    1 << 18
)  # a pass over these takes a tenth of a second, within which no clock is looked at
_MAX_DEPTH = 200
_ITEM_BYTES = 64
_CHAR_BYTES = 112  # of a character that is an item of a list, or of a short piece of text
_VALUE_CHARS = 64  # what is neither text nor a whole number is shown with fewer, or nearly so
_EMPTY: dict[object, object] = {}
_VIEWS: tuple[type, ...] = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_SEQUENCES: Any = (list, tuple, set, frozenset, *_VIEWS)
_CONTAINERS: Any = (dict, MappingProxyType, *_SEQUENCES)


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one rendering.

    Parameters
    ----------
    seconds : float
        Processor time of the thread that renders; waiting for a busy machine does not count.
    output_chars : int
        Characters of the result, and of any text on the way.
    memory_bytes : int
        Sum over all values that the template makes.
    """

    seconds: float = 2.0
    output_chars: int = 4 << 20
    memory_bytes: int = 96 << 20


class Size(NamedTuple):
    """How much a pass over a value meets, parts that are shared each time they are met.

    Parameters
    ----------
    parts : int
        Items, keys and values at every depth.
    chars : int
        Characters of the texts among them.
    depth : int
        Containers inside each other, the outermost not counted.
    """

    parts: int
    chars: int
    depth: int


class Budget:
    """What is left of the limits during one rendering.

    Parameters
    ----------
    limits : Limits
        What there is at the start; the clock starts now, in the thread that renders.

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
        """Refuse a text that would be too long."""
        if chars > self._limits.output_chars:
            raise TemplateError(
                f"chat template: makes a text of {_size(chars)} characters, needs at most "
                f"{self._limits.output_chars}"
            )

    def allow_text(self, value: object) -> None:
        """Refuse a value whose text would be too long; what is text is not looked at."""
        if not isinstance(value, str):
            size = self.text_size(value)
            self.allow(size)
            self.reserve(size * 24)  # every character may be escaped, in four bytes each

    def allow_bits(self, bits: int) -> None:
        """Refuse a whole number that would be too large."""
        if bits > _MAX_INTEGER_BITS:
            raise TemplateError(
                f"chat template: makes a number of {_size(bits)} bits, "
                f"needs at most {_MAX_INTEGER_BITS}"
            )

    def allow_steps(self, what: str, steps: int) -> None:
        """Refuse a search that would compare too many characters."""
        most = self._limits.output_chars << 6
        if steps > most:
            raise TemplateError(
                f"chat template: {what} compares {_size(steps)} characters, needs at most {most}"
            )

    def reserve(self, nbytes: int) -> None:
        """Refuse a step that would need more memory than is left; takes nothing of it."""
        if nbytes > self._bytes_left:
            raise TemplateError(
                f"chat template: makes more than {self._limits.memory_bytes} bytes of values, "
                f"needs fewer: a step takes {_size(nbytes)} of the {max(0, self._bytes_left)} left"
            )

    def reserve_items(self, value: object) -> None:
        """Refuse what is taken apart into characters where these would need too much memory."""
        if isinstance(value, str):
            self.reserve(len(value) * _CHAR_BYTES)

    def take(self, nbytes: int) -> None:
        """Take memory for a value that was made."""
        self.reserve(nbytes)
        self._bytes_left -= nbytes

    def charge(self, value: Value) -> Value:
        """Charge for a value that the template made, and return it, an iterator metered."""
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
        """Estimate the characters of a value's text, stopping where it is too long anyway."""
        cap = self._limits.output_chars
        total, stack = 0, [value]
        while stack and total <= cap:
            item = stack.pop()
            if isinstance(item, str):
                total += len(item) + 4
            elif isinstance(item, int):
                total += 8 + item.bit_length() // 3
            else:
                total += _VALUE_CHARS
                stack.extend(_shown_with(item))
        return total

    def measure(self, value: object) -> Size:
        """Measure a container.

        Raises
        ------
        TemplateError
            When comparing or copying it would take too long.
        """
        total = Size(0, 0, 0)
        level, above = [value], 0
        while level:
            self.tick()
            below: list[object] = []
            for item in level:
                size = self.known.get(id(item)) or _size_of_one(item, below)
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


def _size(count: int) -> str:
    """A count for a message; a template may ask for one of thousands of digits."""
    return str(count) if count < 10**18 else "more than 10**18"


class Metered:
    """An iterator that checks the clock and charges for each item.

    Parameters
    ----------
    items : iterable
    budget : Budget
    """

    __slots__ = ("_budget", "_items")

    def __init__(self, items: Iterable[object], budget: Budget) -> None:
        self._items = iter(items)
        self._budget = budget

    def __iter__(self) -> Metered:
        return self

    def __next__(self) -> object:
        return self._budget.charge(next(self._items))


def parts_of(value: object) -> list[object]:
    """Items of a container, keys and values of a mapping; none of anything else."""
    if isinstance(value, dict | MappingProxyType):
        items = cast("Mapping[object, object]", value)
        return [*items.keys(), *items.values()]
    if isinstance(value, _SEQUENCES):
        return list(cast("Iterable[object]", value))
    return []


def _size_of_one(item: object, below: list[object]) -> Size:
    """Size of a container without those in it, which go to `below`."""
    children = parts_of(item)
    below += [child for child in children if isinstance(child, _CONTAINERS)]
    return Size(len(children), sum(len(c) for c in children if isinstance(c, str)), 0)


def _shown_with(value: object) -> list[object]:
    """What the text of a value shows beside its type."""
    if isinstance(value, Namespace):
        return [cast("object", object.__getattribute__(value, "_Namespace__attrs"))]
    if isinstance(value, MethodType):
        return [value.__self__, value.__name__]
    if isinstance(value, Macro):
        return [value.name]
    return parts_of(value)
