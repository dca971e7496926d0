"""Calls of functions as models write them in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from wgpu_backend.text.output_parsers.kinds import Kinds, allowed_kinds
from wgpu_backend.text.output_parsers.parts import ToolCall

Tools = Sequence[Mapping[str, object]]
"""Functions that may be called, as OpenAI describes them."""

_NAMES = ("name", "tool_name", "function", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
CALL_KEYS = frozenset({*_NAMES, *_ARGUMENTS, "type", "id", "tool_call_id"})
"""What a call in JSON may begin with."""
_MAX_DEPTH = 200  # of a value; Python's decoder recurses
_DEEPER = re.compile(r"[\[{\]}]")
_NAME = re.compile(r'[\s\[{]*"(?:name|function)"\s*:\s*"([^"]*)"')
_HALF = re.compile(r"[\ud800-\udfff]")


class Offered:
    """Functions that may be called.

    Parameters
    ----------
    tools : sequence of mapping
        As OpenAI describes them.

    Attributes
    ----------
    parameters : mapping of str to tuple of str
        Names of parameters by function, in the order of its schema.
    """

    def __init__(self, tools: Tools) -> None:
        self._schemas: dict[str, Mapping[str, object]] = {}
        self._kinds: dict[tuple[str, str], Kinds] = {}
        for tool in tools:
            function = _function(tool)
            schema = _mapping(function.get("parameters"))
            self._schemas[str(function.get("name", ""))] = schema
        self.parameters = {
            name: tuple(map(str, _mapping(schema.get("properties"))))
            for name, schema in self._schemas.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def kinds(self, function: str, parameter: str) -> Kinds:
        """What the schema of a function says of a parameter."""
        key = function, parameter
        if key not in self._kinds:
            schema = self._schemas.get(function, {})
            properties = _mapping(schema.get("properties"))
            self._kinds[key] = allowed_kinds(properties.get(parameter, True), schema)
        return self._kinds[key]


def _function(tool: Mapping[str, object]) -> Mapping[str, object]:
    return _mapping(tool.get("function")) or tool


def _mapping(value: object) -> Mapping[str, object]:
    # `dict` first: Python asks an abstract class in some hundred steps.
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def decoded(text: str) -> object:
    """Value of a JSON text, one that can be written as JSON again.

    Half of a surrogate pair becomes U+FFFD, as in Go; a number that is none (NaN) or that no
    double holds becomes null, as in JavaScript.

    Raises
    ------
    ValueError
        It is no JSON, or nested deeper than any argument.
    """
    if text.count("{") + text.count("[") > _MAX_DEPTH:
        _require_shallow(text)
    return _checked(_DECODER.decode(text), text)


def decoded_at(text: str, at: int) -> tuple[object, int] | None:
    """Value of JSON that begins at a place, and where it ends; None where it is not all there.

    This is `decoded` in one step, for what is there as a whole.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    source = text[at:end]
    if source.count("{") + source.count("[") > _MAX_DEPTH:
        return None
    return _checked(value, source), end


def _checked(value: object, text: str) -> object:
    halves = "\\ud" in text or "\\uD" in text or not (text.isascii() or _encodes(text))
    return sound(value) if halves else value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _double(text: str) -> float | None:
    value = float(text)
    return value if abs(value) < float("inf") else None


def _no_number(text: str) -> None:
    """NaN, or an infinity."""


_DECODER = json.JSONDecoder(strict=False, parse_float=_double, parse_constant=_no_number)


def _require_shallow(text: str) -> None:
    depth = 0
    for mark in _DEEPER.findall(text):
        depth += 1 if mark in "{[" else -1
        if depth > _MAX_DEPTH:
            raise ValueError(f"JSON nested deeper than {_MAX_DEPTH}")


def sound(value: object) -> object:
    """A value of JSON without halves of surrogate pairs, which UTF-8 cannot hold."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [sound(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {_HALF.sub("\ufffd", key): sound(item) for key, item in items}
    return value


def calls_of(text: str) -> list[ToolCall]:
    """Calls in a JSON object or list; names and arguments under any of their usual keys.

    Raises
    ------
    ValueError
        It is no JSON, or no call.
    """
    return calls_in(decoded(text.strip()))


def calls_in(value: object) -> list[ToolCall]:
    """The same of a value that was decoded.

    Raises
    ------
    ValueError
        It is no call.
    """
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    if not items:
        raise ValueError("no call")
    return [_call(item) for item in items]


def _call(value: object) -> ToolCall:
    given = _mapping(value)
    if "function" in given:
        given = _mapping(given["function"]) or given
    name = given.get("name")
    if not isinstance(name, str):
        name = next((given[key] for key in _NAMES if isinstance(given.get(key), str)), None)
    if not isinstance(name, str) or not name:
        raise ValueError("a call has no name")
    for key in _ARGUMENTS:
        if key in given:
            return ToolCall(name, arguments_of(given[key]))
    return ToolCall(name)


def keyed_calls(value: object) -> list[ToolCall]:
    """Calls in a JSON list whose objects have the function's name as their key.

    Raises
    ------
    ValueError
        It is no call.
    """
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    if items and all("name" in _mapping(item) for item in items):
        return calls_in(items)
    pairs = [pair for item in items for pair in _mapping(item).items()]
    if not pairs:
        raise ValueError("no call")
    return [ToolCall(name, arguments_of(arguments)) for name, arguments in pairs]


def arguments_of(value: object) -> Mapping[str, object]:
    """Arguments of a call: a mapping, or JSON of one.

    Raises
    ------
    ValueError
        They are no mapping.
    """
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    if isinstance(value, str):
        value = decoded(value) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("arguments are no object")
    return cast("Mapping[str, object]", value)


def begun_name(text: str, at: int) -> str:
    """Name in the beginning of a call in JSON; empty where it is none."""
    found = _NAME.match(text, at)
    return found[1] if found else ""
