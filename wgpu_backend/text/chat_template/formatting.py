"""Formatting with ``%`` and ``str.format``, whose widths and precisions a text chooses.

The result of ``%`` is estimated from its text and arguments. ``str.format`` works field by field,
and a field may be part of another one's specification, so each is checked when it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jinja2 import Environment
from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter
from markupsafe import Markup

from wgpu_backend.text.chat_template.budget import Budget

Value = Any
"""Any value that a template computes."""

_SPECIFIER = re.compile(r"[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.?)", re.DOTALL)
_DIGITS = re.compile(r"\d+")
# The longest float written out.
_NUMBER_CHARS = 352
# The longest form of a character in repr.
_ESCAPED = 10


def percent_size(budget: Budget, text: str, right: object) -> int:
    """Return an upper bound of the characters of ``text % right``."""
    given = cast("tuple[object, ...]", right) if isinstance(right, tuple) else (right,)
    arguments = list(given)
    total, at = len(text), text.find("%")
    while at >= 0:
        budget.tick()
        key, start = _key(text, at + 1)
        found = cast("re.Match[str]", _SPECIFIER.match(text, start))
        width, precision, kind = found.groups()
        total += sum(_count(part, arguments) for part in (width, precision))
        if kind != "%":
            total += _displayed_size(budget, _argument(key, given[-1:], arguments), kind)
        budget.allow(total)
        at = text.find("%", max(found.end(), at + 1))
    return total


def _key(text: str, start: int) -> tuple[str | None, int]:
    """Return a key in parentheses, which may be nested, and the place after it."""
    if text[start : start + 1] != "(":
        return None, start
    depth, end = 1, start + 1
    while depth and end < len(text):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[start + 1 : end - 1], end


def _count(digits: str | None, arguments: list[object]) -> int:
    """Return a width or precision; a star takes it from the arguments."""
    if digits == "*":
        value = arguments.pop(0) if arguments else 0
        return abs(value) if isinstance(value, int) else 0
    return _number(digits or "")


def _number(digits: str) -> int:
    return int(digits.lstrip("0")[:12] or "0")


def _argument(key: str | None, given: tuple[object, ...], arguments: list[object]) -> object:
    if key is None:
        return arguments.pop(0) if arguments else ""
    mapping = cast("Mapping[object, object]", given[0]) if given else None
    return mapping.get(key, "") if isinstance(mapping, Mapping) else ""


def _displayed_size(budget: Budget, value: object, kind: str) -> int:
    if not isinstance(value, str):
        return budget.text_size(value) + _NUMBER_CHARS
    return len(value) * (_ESCAPED if kind in "ra" else 1)


class _MeteredFormatter(SandboxedFormatter):
    """The sandbox's formatter with a check of each field before it is written."""

    def __init__(self, env: Environment, budget: Budget, **kwargs: Value) -> None:
        super().__init__(env, **kwargs)
        self._budget = budget
        self._written = 0

    def get_field(
        self, field_name: str, args: Sequence[Value], kwargs: Mapping[str, Value]
    ) -> tuple[Value, str]:
        self._budget.tick()
        return super().get_field(field_name, args, kwargs)

    def convert_field(self, value: Value, conversion: Value) -> Value:
        if conversion is None:
            return value
        self._budget.allow(_displayed_size(self._budget, value, conversion))
        return self._budget.charge(super().convert_field(value, conversion))

    def format_field(self, value: Value, format_spec: str) -> str:
        asked = sum(map(_number, _DIGITS.findall(format_spec)))
        self._budget.allow(self._written + asked + _displayed_size(self._budget, value, "s"))
        text = super().format_field(value, format_spec)
        self._written += len(text)
        return self._budget.charge(text)


class _Plain(_MeteredFormatter):
    pass


class _Escaping(_MeteredFormatter, SandboxedEscapeFormatter):
    pass


def format_text(
    env: Environment, budget: Budget, text: str, args: Sequence[Value], kwargs: Mapping[str, Value]
) -> str:
    """Return ``text.format(*args, **kwargs)``, within the sandbox and its limits."""
    if isinstance(text, Markup):
        formatter: _MeteredFormatter = _Escaping(env, budget, escape=text.escape)
    else:
        formatter = _Plain(env, budget)
    return budget.charge(type(text)(formatter.vformat(text, args, kwargs)))
