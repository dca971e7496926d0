"""Jinja's filters and tests with a look at the budget before and after each.

What they are called with stays Jinja's own; those that are written here, ``tojson`` and ``sum``,
are what chat templates expect, and a sum that can be stopped.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.filters import make_attrgetter

from wgpu_backend.text.chat_template import estimates
from wgpu_backend.text.chat_template.budget import Budget, Metered, parts_of

Value = Any
"""Whatever a template computes."""

Function = Callable[..., Value]

# Filters of web pages: none is of use here, and each has its own way of taking long.
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
_PATH_AT = {  # where the path of an attribute stands among the arguments
    "groupby": 0, "selectattr": 0, "rejectattr": 0, "sum": 0, "max": 1, "min": 1, "unique": 1,
    "sort": 2,
}  # fmt: skip


def metered_filters(budget: Budget, filters: Mapping[str, Function]) -> dict[str, Function]:
    """Filters for one rendering, from Jinja's."""
    kept = {name: f for name, f in filters.items() if name not in _REMOVED}
    kept |= {
        "tojson": _json_filter(budget),
        "sum": _sum_filter(budget, kept["sum"]),
        "join": _join_filter(budget, kept["join"]),
    }
    return {name: _metered_filter(budget, name, function) for name, function in kept.items()}


def metered_tests(budget: Budget, tests: Mapping[str, Function]) -> dict[str, Function]:
    """Tests (``is odd``) for one rendering, from Jinja's."""
    return {name: _metered_test(budget, name, function) for name, function in tests.items()}


def _metered_filter(budget: Budget, name: str, function: Function) -> Function:
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja passes a context first
    check = estimates.FILTERS.get(name)

    @functools.wraps(function)
    def metered(*args: Value, **kwargs: Value) -> Value:
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

    return metered


def _check_path(name: str, rest: list[Value], kwargs: Mapping[str, Value]) -> None:
    at = _PATH_AT.get(name, len(rest))
    for path in (kwargs.get("attribute"), *rest[at : at + 1]):
        estimates.check_path(path)


def _metered_test(budget: Budget, name: str, function: Function) -> Function:
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = estimates.TESTS.get(name)

    @functools.wraps(function)
    def metered(*args: Value, **kwargs: Value) -> Value:
        budget.tick()
        if check is not None:
            check(budget, *args[passed:], **kwargs)
        return function(*args, **kwargs)

    return metered


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
    """Give a function the signature of what it stands for."""
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
    size = budget.measure(x) if parts_of(x) else None
    text = budget.text_size(x)
    if size is not None:
        between = sum(map(len, separators)) if separators else 4
        step = len(indent) if isinstance(indent, str) else max(0, indent or 0)
        text += (size.parts + 2) * (between + step * (size.depth + 1))
    budget.allow(text)
    budget.reserve(text * 24)  # every character may be escaped, in four bytes each
