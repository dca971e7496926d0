"""Values of arguments that are written without JSON's quotes."""

from __future__ import annotations

import re

from wgpu_backend.text.output_parsers.calls import decoded
from wgpu_backend.text.output_parsers.kinds import Kinds, kind_of
from wgpu_backend.text.output_parsers.literals import literal

_WHOLE = re.compile(r"[+-]?\d{1,400}")
_SHORT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_BOOLEANS = {"true": True, "false": False}
_CONSTANTS = {**_BOOLEANS, "null": None}


def typed(text: str, kinds: Kinds) -> object:
    """Value of an argument, by what its schema says.

    Where a text is allowed and no number, it is a text, but for a null or a value in brackets that
    is allowed as well. Other types may be written as JSON or as Python.

    Parameters
    ----------
    text : str
    kinds : Kinds
    """
    if kinds.texts and text in kinds.texts:
        return text
    bare = text.strip()
    if not kinds.told:
        return _value(bare, text, python=False)
    if kinds.words:
        if bare[:1] not in ("{", "[") and bare != "null":
            return text
        value = _value(bare, text, python=True)
        return value if kind_of(value) in kinds.types else text
    return _converted(_value(bare, text, python=True), text, kinds)


def _value(bare: str, text: str, *, python: bool) -> object:
    """What JSON, or Python, has as this value; the text itself where it is none."""
    if bare in _CONSTANTS:
        return _CONSTANTS[bare]
    if _SHORT.fullmatch(bare):
        return int(bare)
    try:
        return decoded(bare)
    except (ValueError, RecursionError):
        try:
            return literal(bare) if python else text
        except (ValueError, RecursionError):
            return text


def _converted(value: object, text: str, kinds: Kinds) -> object:
    """A value of an allowed type, where it is one that was written another way."""
    bare, types = text.strip(), kinds.types
    if kind_of(value) in types:
        return text if isinstance(value, str) else value
    if "string" in types:
        return text
    if "boolean" in types and bare.lower() in _BOOLEANS:
        return _BOOLEANS[bare.lower()]
    if "integer" in types and isinstance(value, float) and value.is_integer():
        return int(value)
    if "integer" in types and _WHOLE.fullmatch(bare):
        return int(bare)
    if isinstance(value, str) and value != text:  # in quotation marks
        return typed(value, kinds)
    return value
