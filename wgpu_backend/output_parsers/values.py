"""Values of arguments that are written without JSON's quotes."""

from __future__ import annotations

import re

from wgpu_backend.output_parsers.calls import decoded
from wgpu_backend.output_parsers.kinds import Kinds, kind_of
from wgpu_backend.output_parsers.literals import literal

_NUMBERS = frozenset({"number", "integer"})
_WHOLE = re.compile(r"[+-]?\d{1,400}")
_BOOLEANS = {"true": True, "false": False}


def typed(text: str, kinds: Kinds) -> object:
    """Value of an argument, by what its schema says.

    Where a text is allowed and no number, it is a text, but for a null or a value in brackets that
    is allowed as well. Other types may be written as JSON or as Python.

    Parameters
    ----------
    text : str
    kinds : Kinds
    """
    bare = text.strip()
    if text in kinds.texts:
        return text
    if not kinds.told:
        return _value(bare, text, python=False)
    if "string" in kinds.types and not kinds.types & _NUMBERS:
        may = bare[:1] in ("{", "[") or bare == "null"
        value = _value(bare, text, python=True) if may else text
        return value if kind_of(value) in kinds.types else text
    return _converted(_value(bare, text, python=True), text, kinds)


def _value(bare: str, text: str, *, python: bool) -> object:
    """What JSON, or Python, has as this value; the text itself where it is none."""
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
