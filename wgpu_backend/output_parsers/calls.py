"""Calls of functions as models write them in JSON, and values of arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from wgpu_backend.output_parsers.parts import ToolCall

Tools = Sequence[Mapping[str, object]]
"""Functions that may be called, as OpenAI describes them."""

_NAMES = ("name", "tool_name", "function", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_MAX_DEPTH = 200  # of a value; Python's decoder recurses


def names(tools: Tools) -> frozenset[str]:
    """Names of functions."""
    return frozenset(str(_function(tool).get("name", "")) for tool in tools)


def parameter_types(tools: Tools) -> Mapping[tuple[str, str], str]:
    """What the schemas say of parameters: types by function and parameter."""
    found: dict[tuple[str, str], str] = {}
    for tool in tools:
        function = _function(tool)
        properties = _mapping(_mapping(function.get("parameters")).get("properties"))
        for name, schema in properties.items():
            kind = _mapping(schema).get("type")
            if isinstance(kind, str):
                found[str(function.get("name", "")), name] = kind
    return found


def _function(tool: Mapping[str, object]) -> Mapping[str, object]:
    return _mapping(tool.get("function")) or tool


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def decoded(text: str) -> object:
    """Value of a JSON text.

    Raises
    ------
    ValueError
        It is no JSON, or nested deeper than any argument.
    """
    depth = 0
    for mark in text:
        depth += (mark in "{[") - (mark in "}]")
        if depth > _MAX_DEPTH:
            raise ValueError(f"JSON nested deeper than {_MAX_DEPTH}")
    return json.loads(text, strict=False)


def calls_of(text: str) -> list[ToolCall]:
    """Calls in a JSON object or list; names and arguments under any of their usual keys.

    Raises
    ------
    ValueError
        It is no JSON, or no call.
    """
    value = decoded(text.strip())
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    if not items:
        raise ValueError("no call")
    return [_call(item) for item in items]


def _call(value: object) -> ToolCall:
    given = _mapping(value)
    given = _mapping(given.get("function")) or given
    name = next((given[key] for key in _NAMES if isinstance(given.get(key), str)), None)
    if not isinstance(name, str) or not name:
        raise ValueError("a call has no name")
    key = next((key for key in _ARGUMENTS if key in given), "")
    return ToolCall(name, arguments_of(given.get(key)))


def arguments_of(value: object) -> Mapping[str, object]:
    """Arguments of a call: a mapping, or JSON of one.

    Raises
    ------
    ValueError
        They are no mapping.
    """
    if isinstance(value, str):
        value = decoded(value) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("arguments are no object")
    return cast("Mapping[str, object]", value)


def typed(text: str, kind: str | None) -> object:
    """Value of an argument that is written without JSON's quotes.

    Parameters
    ----------
    text : str
    kind : str or None
        What its schema says; a ``string`` is never decoded.
    """
    if kind == "string":
        return text
    try:
        return decoded(text)
    except ValueError:
        return text
