"""Estimates of what an operation is about to use, checked before it runs.

A check has the same parameters as its operation, by Jinja's or Python's own names: both accept the
same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template.budget import Budget, Metered
from wgpu_backend.text.chat_template.formatting import percent_size

Value = Any
"""Any value that a template computes."""

Check = Callable[..., None]
"""A check of the budget and the operation's arguments; raises TemplateError if it is too much."""

_ITEM_BYTES = 72
# A short text in a list.
_PIECE_BYTES = 88
# A character, if every other one ends a piece.
_SHORT_PIECES_BYTES = _PIECE_BYTES // 2
# A line that is split off, indented and joined.
_LINE_BYTES = 160
# A character that is split off as a word, changed and joined.
_WORD_BYTES = 128
_MAX_ROUND_DIGITS = 400
_MAX_PATH_CHARS = 1 << 12


def _pad(budget: Budget, text: str, width: int = 80, fillchar: str = " ") -> None:
    del fillchar
    budget.allow(max(len(text), width))


def _zfill(budget: Budget, text: str, width: int) -> None:
    budget.allow(max(len(text), width))


def _replace(budget: Budget, text: str, old: str, new: str, count: int | None = None) -> None:
    found = text.count(old)
    times = found if count is None or count < 0 else min(found, count)
    budget.allow(len(text) + times * len(new))


def _expandtabs(budget: Budget, text: str, tabsize: int = 8) -> None:
    budget.allow(len(text) + text.count("\t") * max(0, tabsize))


def _strip(budget: Budget, text: str, chars: str | None = None) -> None:
    if chars is not None:
        budget.allow_steps("strip", len(text) * len(chars))


def _search_back(budget: Budget, text: str, sub: str, *_: int | None) -> None:
    budget.allow_steps("a search from the right", (len(text) - len(sub)) * len(sub))


def _split(budget: Budget, text: str, sep: str | None = None, maxsplit: int = -1) -> None:
    if sep is None:
        budget.reserve(len(text) * _SHORT_PIECES_BYTES)
    else:
        pieces = text.count(sep) if maxsplit < 0 else min(text.count(sep), maxsplit)
        budget.reserve((pieces + 1) * _PIECE_BYTES)


def _rsplit(budget: Budget, text: str, sep: str | None = None, maxsplit: int = -1) -> None:
    _split(budget, text, sep, maxsplit)
    if sep is not None:
        _search_back(budget, text, sep)


def _splitlines(budget: Budget, text: str, keepends: bool = False) -> None:
    del keepends
    budget.reserve(len(text) * _SHORT_PIECES_BYTES)


METHODS: Mapping[str, Check] = {
    "center": _pad,
    "ljust": _pad,
    "rjust": _pad,
    "zfill": _zfill,
    "replace": _replace,
    "expandtabs": _expandtabs,
    "strip": _strip,
    "lstrip": _strip,
    "rstrip": _strip,
    "rfind": _search_back,
    "rindex": _search_back,
    "rpartition": _search_back,
    "split": _split,
    "rsplit": _rsplit,
    "splitlines": _splitlines,
}
"""String methods that make much of little or take long, except ``join`` and ``format``."""


def _center_filter(budget: Budget, value: object, width: int = 80) -> None:
    _pad(budget, _text(value), width)


def _replace_filter(
    budget: Budget, s: object, old: object, new: object, count: int | None = None
) -> None:
    for argument in (old, new):
        budget.allow_text(argument)
    _replace(budget, _text(s), str(old), str(new), count)


def _indent_filter(
    budget: Budget, s: object, width: int | str = 4, first: bool = False, blank: bool = False
) -> None:
    del first, blank
    # Jinja appends a line in place, which would change a list.
    if not isinstance(s, str):
        raise TemplateError(f"chat template: indent of {type(s).__name__}, needs text")
    each = len(width) if isinstance(width, str) else max(0, width)
    budget.reserve(len(s) * _SHORT_PIECES_BYTES)
    lines = len(s.splitlines()) + 1
    budget.allow(len(s) + lines * each)
    budget.reserve(lines * _LINE_BYTES)


def _trim_filter(budget: Budget, value: object, chars: str | None = None) -> None:
    _strip(budget, _text(value), chars)


def _format_filter(budget: Budget, value: object, *args: object, **kwargs: object) -> None:
    budget.allow(percent_size(budget, _text(value), kwargs or args))


def _round_filter(
    budget: Budget, value: object, precision: int | None = 0, method: str = "common"
) -> None:
    del budget, method
    # Jinja multiplies the value, which would repeat text.
    if not isinstance(value, int | float):
        raise TemplateError(f"chat template: round of {type(value).__name__}, needs a number")
    # Python accepts None digits, too.
    if abs(precision or 0) > _MAX_ROUND_DIGITS:
        raise TemplateError(
            f"chat template: rounds to more digits than {_MAX_ROUND_DIGITS}, needs at most those"
        )


def _batch_filter(budget: Budget, value: object, linecount: int, fill_with: object = None) -> None:
    del value
    if fill_with is not None:
        budget.reserve(linecount * _ITEM_BYTES)


def _words_filter(budget: Budget, s: object) -> None:
    budget.reserve(len(_text(s)) * _WORD_BYTES)


def _urlencode_filter(budget: Budget, value: object) -> None:
    _words_filter(budget, value)


FILTERS: Mapping[str, Check] = {
    "center": _center_filter,
    "replace": _replace_filter,
    "indent": _indent_filter,
    "trim": _trim_filter,
    "format": _format_filter,
    "round": _round_filter,
    "batch": _batch_filter,
    "title": _words_filter,
    "wordcount": _words_filter,
    "urlencode": _urlencode_filter,
}
"""Filters that make much of little, by Jinja's parameters without a context."""


def check_path(attribute: object) -> None:
    """Raise if the path of an attribute, ``a.b.c``, is too long."""
    if isinstance(attribute, str) and len(attribute) > _MAX_PATH_CHARS:
        raise TemplateError(
            f"chat template: attribute of {len(attribute)} characters, "
            f"needs at most {_MAX_PATH_CHARS}"
        )


def items_to_join(budget: Budget, items: Value, between: object) -> list[object]:
    """List items to join, after a check that the result is not too long."""
    kept: list[object] = list(Metered(items, budget) if isinstance(items, str) else items)
    total = _chars(budget, between) * max(0, len(kept) - 1)
    for item in kept:
        budget.tick()
        total += _chars(budget, item)
        budget.allow(total)
    return kept


def _chars(budget: Budget, value: object) -> int:
    return len(value) if isinstance(value, str) else budget.text_size(value)


def _text(value: object) -> str:
    """Return the text that a filter works on; the caller has checked its length."""
    return value if isinstance(value, str) else str(value)


def _check_add(budget: Budget, left: object, right: object) -> None:
    if isinstance(left, str) and isinstance(right, str):
        budget.allow(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        # A list has a pointer of 8 bytes for each item.
        budget.reserve(8 * (len(cast("list[object]", left)) + len(cast("list[object]", right))))


def _check_multiply(budget: Budget, left: object, right: object) -> None:
    for value, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(value, str):
            budget.allow(len(value) * count)
        elif isinstance(count, int) and isinstance(value, list | tuple):
            budget.reserve(8 * len(cast("list[object]", value)) * count)
    if isinstance(left, int) and isinstance(right, int):
        # A product has at most as many bits as its factors together.
        budget.allow_bits(left.bit_length() + right.bit_length())


def _check_power(budget: Budget, left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        budget.allow_bits(left.bit_length() * abs(right))


def _check_modulo(budget: Budget, left: object, right: object) -> None:
    if isinstance(left, str):
        budget.allow(percent_size(budget, left, right))


_OPERATORS: Mapping[str, Callable[[Budget, object, object], None]] = {
    "+": _check_add,
    "*": _check_multiply,
    "**": _check_power,
    "%": _check_modulo,
}


def check_operator(budget: Budget, operator: str, left: object, right: object) -> None:
    """Check the result of an operator before it is computed."""
    for value in (left, right):
        if isinstance(value, int):
            budget.allow_bits(value.bit_length())
    check = _OPERATORS.get(operator)
    if check is not None:
        check(budget, left, right)


def _parity(budget: Budget, value: object) -> None:
    check_operator(budget, "%", value, 2)


def _divisible(budget: Budget, value: object, num: object) -> None:
    check_operator(budget, "%", value, num)


def _as_text(budget: Budget, value: object) -> None:
    budget.allow_text(value)


TESTS: Mapping[str, Check] = {
    # Jinja takes a remainder, which for text is formatting.
    "odd": _parity,
    "even": _parity,
    "divisibleby": _divisible,
    "lower": _as_text,
    "upper": _as_text,
}
"""Tests that compute something of their value, by Jinja's parameters."""
