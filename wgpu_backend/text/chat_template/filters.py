"""Jinja's filters and tests with checks of the budget before and after each.

Parameters are Jinja's own. ``tojson`` and ``sum`` are replaced: chat templates expect another
``tojson``, and the sum has to be interruptible.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.filters import make_attrgetter

from wgpu_backend.text.chat_template import estimates
from wgpu_backend.text.chat_template.budget import Budget, Metered, list_parts

Value = Any
"""Any value that a template computes."""

Function = Callable[..., Value]

# Filters for web pages: not useful here, and each can take long in its own way.
_REMOVED = ("pprint", "urlize", "wordwrap", "xmlattr", "random", "striptags")
_OF_TEXT = frozenset(
    (
        *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string"),
        *("title", "trim", "truncate", "upper", "urlencode", "wordcount"),
        *("center", "indent", "replace", "format"),
    )
)
_OF_ITEMS = frozenset(
    (
        *("batch", "groupby", "list", "map", "max", "min", "reject", "rejectattr"),
        *("select", "selectattr", "slice", "sort", "sum", "unique"),
    )
)
# Positions of an attribute's path among the arguments.
_PATH_AT = {
    "groupby": 0, "selectattr": 0, "rejectattr": 0, "sum": 0, "max": 1, "min": 1, "unique": 1,
    "sort": 2,
}  # fmt: skip


def meter_filters(budget: Budget, filters: Mapping[str, Function]) -> dict[str, Function]:
    """Wrap Jinja's filters for one rendering."""
    kept = {name: f for name, f in filters.items() if name not in _REMOVED}
    kept |= {
        "tojson": _json_filter(budget),
        "sum": _sum_filter(budget, kept["sum"]),
        "join": _join_filter(budget, kept["join"]),
    }
    return {name: _meter_filter(budget, name, function) for name, function in kept.items()}


def meter_tests(budget: Budget, tests: Mapping[str, Function]) -> dict[str, Function]:
    """Wrap Jinja's tests (``is odd``) for one rendering."""
    return {name: _meter_test(budget, name, function) for name, function in tests.items()}


def _meter_filter(budget: Budget, name: str, function: Function) -> Function:
    # Jinja passes a context first.
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = estimates.FILTERS.get(name)

    @functools.wraps(function)
    def wrapper(*args: Value, **kwargs: Value) -> Value:
        budget.tick()
        value, *rest = args[passed:]
        if name in _OF_TEXT:
            budget.allow_text(value)
        elif name in _OF_ITEMS:
            _check_path(name, rest, kwargs)
            value = Metered(value, budget) if isinstance(value, str) else value
        if check is not None:
            check(budget, value, *rest, **kwargs)
        return budget.charge(function(*args[:passed], value, *rest, **kwargs))

    return wrapper


def _check_path(name: str, rest: list[Value], kwargs: Mapping[str, Value]) -> None:
    at = _PATH_AT.get(name, len(rest))
    for path in (kwargs.get("attribute"), *rest[at : at + 1]):
        estimates.check_path(path)


def _meter_test(budget: Budget, name: str, function: Function) -> Function:
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = estimates.TESTS.get(name)

    @functools.wraps(function)
    def wrapper(*args: Value, **kwargs: Value) -> Value:
        budget.tick()
        if check is not None:
            check(budget, *args[passed:], **kwargs)
        return function(*args, **kwargs)

    return wrapper


def _join_filter(budget: Budget, original: Function) -> Function:
    @functools.wraps(original)
    def join(
        context: Value,
        value: Iterable[object],
        d: object = "",
        attribute: str | int | None = None,
    ) -> str:
        estimates.check_path(attribute)
        if attribute is not None:
            value = map(make_attrgetter(context.environment, attribute), value)
        return original(context, estimates.items_to_join(budget, value, d), d)

    return join


def _sum_filter(budget: Budget, original: Function) -> Function:
    @pass_environment
    def total(
        environment: Environment,
        iterable: Iterable[Value],
        attribute: str | int | None = None,
        start: Value = 0,
    ) -> Value:
        term = make_attrgetter(environment, attribute)
        result = start
        for value in iterable:
            addend = term(value)
            estimates.check_operator(budget, "+", result, addend)
            result = budget.charge(result + addend)
        return result

    return _like(total, original)


def _like(function: Function, original: Function) -> Function:
    """Give a function the signature of the one it replaces."""
    function.__wrapped__ = original  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _json_filter(budget: Budget) -> Function:
    def tojson(
        x: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Write JSON as Hugging Face's templates expect: unescaped, not made safe for HTML."""
        _allow_json(budget, x, indent, separators)
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    return tojson


def _allow_json(
    budget: Budget, x: object, indent: int | str | None, separators: tuple[str, str] | None
) -> None:
    size = budget.measure(x) if list_parts(x) else None
    text = budget.text_size(x)
    if size is not None:
        between = sum(map(len, separators)) if separators else 4
        step = len(indent) if isinstance(indent, str) else max(0, indent or 0)
        text += (size.parts + 2) * (between + step * (size.depth + 1))
    budget.allow(text)
    # Every character may be escaped, as six characters of four bytes.
    budget.reserve(text * 24)
