"""Conversion of arguments that are written without JSON's quotes."""

from __future__ import annotations

import re

from wgpu_backend.text.output_parsers.calls import decode_json
from wgpu_backend.text.output_parsers.kinds import Kinds, json_type
from wgpu_backend.text.output_parsers.literals import parse_literal

_WHOLE = re.compile(r"[+-]?\d{1,400}")
_SHORT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_BOOLEANS = {"true": True, "false": False}
_CONSTANTS = {**_BOOLEANS, "null": None}


def convert(text: str, kinds: Kinds) -> object:
    """Convert an argument's text to a value that its schema allows.

    If a string is allowed and a number is not, the text stays a string, except for null or a value
    in brackets that is allowed as well. Other types may be written as JSON or as Python.
    """
    if kinds.texts and text in kinds.texts:
        return text
    bare = text.strip()
    if not kinds.is_restricted:
        return _parse_value(bare, text, python=False)
    if kinds.is_text:
        if bare[:1] not in ("{", "[") and bare != "null":
            return text
        value = _parse_value(bare, text, python=True)
        return value if json_type(value) in kinds.types else text
    if _SHORT.fullmatch(bare) and "integer" in kinds.types:
        return int(bare)
    return _coerce(_parse_value(bare, text, python=True), text, kinds)


def _parse_value(bare: str, text: str, *, python: bool) -> object:
    """Parse a value as JSON or Python, or return the text itself."""
    if bare in _CONSTANTS:
        return _CONSTANTS[bare]
    if _SHORT.fullmatch(bare):
        return int(bare)
    try:
        return decode_json(bare)
    except (ValueError, RecursionError):
        try:
            return parse_literal(bare) if python else text
        except (ValueError, RecursionError):
            return text


def _coerce(value: object, text: str, kinds: Kinds) -> object:
    """Convert a value to an allowed type if it was written differently."""
    bare, types = text.strip(), kinds.types
    if json_type(value) in types:
        return text if isinstance(value, str) else value
    if "string" in types:
        return text
    if "boolean" in types and bare.lower() in _BOOLEANS:
        return _BOOLEANS[bare.lower()]
    if "integer" in types and isinstance(value, float) and value.is_integer():
        return int(value)
    if "integer" in types and _WHOLE.fullmatch(bare):
        return int(bare)
    # The value was in quotation marks.
    if isinstance(value, str) and value != text:
        return convert(value, kinds)
    return value
