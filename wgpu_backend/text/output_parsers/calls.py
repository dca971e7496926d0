"""Tool calls that models write as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from json.scanner import make_scanner
from typing import cast

from wgpu_backend.text.output_parsers.kinds import Kinds, parameter_kinds, parameter_names
from wgpu_backend.text.output_parsers.parts import ToolCall

Tools = Sequence[Mapping[str, object]]
"""Functions that may be called, as OpenAI describes them."""

_NAMES = ("name", "tool_name", "function", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
CALL_KEYS = frozenset({*_NAMES, *_ARGUMENTS, "type", "id", "tool_call_id"})
"""First keys of a call in JSON."""
# Nesting of a value: Python's decoder recurses.
_MAX_DEPTH = 200
_DEEPER = re.compile(r"[\[{\]}]")
_NAME = re.compile(r'[\s\[{]*"(?:name|function)"\s*:\s*"([^"]*)"')
_HALF = re.compile(r"[\ud800-\udfff]")


class OfferedTools:
    """The functions that an answer may call.

    Parameters
    ----------
    tools : sequence of mapping
        Functions in OpenAI's format.

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
        self.parameters = {name: parameter_names(s) for name, s in self._schemas.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def kinds(self, function: str, parameter: str) -> Kinds:
        """Return the values that a function's schema allows for a parameter."""
        found = self._kinds.get((function, parameter))
        if found is None:
            found = parameter_kinds(self._schemas.get(function, {}), parameter)
            self._kinds[function, parameter] = found
        return found


def _function(tool: Mapping[str, object]) -> Mapping[str, object]:
    return _mapping(tool.get("function")) or tool


def _mapping(value: object) -> Mapping[str, object]:
    # `dict` first: a check against an abstract class takes some hundred steps.
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def decode_json(text: str) -> object:
    """Decode JSON to a value that can be encoded as JSON again.

    Half of a surrogate pair becomes U+FFFD, as in Go; NaN, infinities and numbers too large for a
    double become null, as in JavaScript.

    Raises
    ------
    ValueError
        It is not JSON, or is nested too deep.
    """
    if text.count("{") + text.count("[") > _MAX_DEPTH:
        _require_shallow(text)
    return _replace_if_needed(_DECODER.decode(text), text)


def decode_json_at(text: str, at: int) -> tuple[object, int] | None:
    """Decode JSON that begins at a place; return it and its end, or None if it is incomplete.

    This is `decode_json` in one step, for a value that has arrived as a whole.
    """
    try:
        value, end = _SCAN(text, at)
    except (StopIteration, ValueError, RecursionError):
        return None
    if end - at > _MAX_DEPTH and text.count("{", at, end) + text.count("[", at, end) > _MAX_DEPTH:
        return None
    source = text[at:end]
    return _replace_if_needed(value, source), end


def _replace_if_needed(value: object, text: str) -> object:
    halves = "\\ud" in text or "\\uD" in text or not (text.isascii() or _encodes(text))
    return replace_surrogates(value) if halves else value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _double(text: str) -> float | None:
    value = float(text)
    return value if abs(value) < float("inf") else None


def _replace_non_number(text: str) -> None:
    """Decode NaN or an infinity as None."""


_DECODER = json.JSONDecoder(strict=False, parse_float=_double, parse_constant=_replace_non_number)
# What `raw_decode` calls.
_SCAN = make_scanner(cast("make_scanner", _DECODER))


def _require_shallow(text: str) -> None:
    depth = 0
    for mark in _DEEPER.findall(text):
        depth += 1 if mark in "{[" else -1
        if depth > _MAX_DEPTH:
            raise ValueError(f"JSON nested deeper than {_MAX_DEPTH}")


def replace_surrogates(value: object) -> object:
    """Replace halves of surrogate pairs in a JSON value, which UTF-8 cannot encode."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [replace_surrogates(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {_HALF.sub("\ufffd", key): replace_surrogates(item) for key, item in items}
    return value


def parse_calls(text: str) -> list[ToolCall]:
    """Parse calls in a JSON object or list, with names and arguments under any usual key.

    Raises
    ------
    ValueError
        It is not JSON, or not a call.
    """
    return make_calls(decode_json(text.strip()))


def make_calls(value: object) -> list[ToolCall]:
    """Make calls of a decoded JSON value.

    Raises
    ------
    ValueError
        It is not a call.
    """
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    if not items:
        raise ValueError("the JSON has no tool call")
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
            return ToolCall(name, parse_arguments(given[key]))
    return ToolCall(name)


def make_keyed_calls(value: object) -> list[ToolCall]:
    """Make calls of a JSON list whose objects have the function's name as their key.

    Raises
    ------
    ValueError
        It is not a call.
    """
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    if items and all("name" in _mapping(item) for item in items):
        return make_calls(items)
    pairs = [pair for item in items for pair in _mapping(item).items()]
    if not pairs:
        raise ValueError("the JSON has no tool call")
    return [ToolCall(name, parse_arguments(arguments)) for name, arguments in pairs]


def parse_arguments(value: object) -> Mapping[str, object]:
    """Return the arguments of a call from a mapping or its JSON.

    Raises
    ------
    ValueError
        The arguments are not a mapping.
    """
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    if isinstance(value, str):
        value = decode_json(value) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("arguments are not an object")
    return cast("Mapping[str, object]", value)


def read_partial_name(text: str, at: int) -> str:
    """Return the name at the beginning of a call in JSON, or "" if there is none."""
    found = _NAME.match(text, at)
    return found[1] if found else ""
