"""Types of values that a JSON schema allows, for arguments written without JSON's quotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

# Steps through a schema and its references.
_MAX_STEPS = 200
_ALL = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_NUMBERS = frozenset({"number", "integer"})
_SIGNS = {
    # Keywords that imply a type in a schema without one.
    "properties": "object", "additionalProperties": "object", "required": "object",
    "items": "array", "prefixItems": "array", "minItems": "array", "maxItems": "array",
    "pattern": "string", "minLength": "string", "maxLength": "string", "format": "string",
    "minimum": "number", "maximum": "number", "multipleOf": "number",
    "exclusiveMinimum": "number", "exclusiveMaximum": "number",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kinds:
    """The values that a schema allows.

    Parameters
    ----------
    types : frozenset of str
        JSON types; all of them without a restriction.
    texts : frozenset of str
        Strings in ``enum`` or ``const``.

    Attributes
    ----------
    is_restricted : bool
        Whether the schema restricts the type.
    is_text : bool
        Whether a string is allowed and a number is not.
    """

    types: frozenset[str] = _ALL
    texts: frozenset[str] = frozenset()
    is_restricted: bool = field(init=False)
    is_text: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_restricted", self.types != _ALL)
        words = "string" in self.types and not self.types & _NUMBERS
        object.__setattr__(self, "is_text", words)


_ANY = Kinds()
_NAMES: dict[type, str] = {
    type(None): "null", bool: "boolean", str: "string", int: "integer", float: "number",
    list: "array",
}  # fmt: skip


def allowed_kinds(schema: object, root: Mapping[str, object]) -> Kinds:
    """Return the types and strings that a schema allows.

    Parameters
    ----------
    schema : object
        The schema of a parameter.
    root : mapping
        The document that ``$ref`` refers to.
    """
    return _Walk(root).find_kinds(schema)


class _Walk:
    """A walk through a schema, which may refer to itself."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._left = _MAX_STEPS
        self._within: set[int] = set()

    def find_kinds(self, schema: object) -> Kinds:
        """Return the values that a schema allows; any value if it refers to itself."""
        self._left -= 1
        if not isinstance(schema, Mapping):
            return _ANY
        given = cast("Mapping[str, object]", schema)
        if self._left < 0 or id(given) in self._within:
            return _ANY
        self._within.add(id(given))
        found = [_kinds_from_type(given), _kinds_from_enum(given)]
        if isinstance(reference := given.get("$ref"), str):
            found.append(self.find_kinds(_resolve(reference, self._root)))
        options = (_items(given.get(key)) for key in ("anyOf", "oneOf"))
        found += [_any([self.find_kinds(each) for each in every]) for every in options if every]
        found += [self.find_kinds(each) for each in _items(given.get("allOf"))]
        self._within.discard(id(given))
        types = _ALL
        for each in found:
            types &= each.types | ({"integer"} if "number" in each.types else set[str]())
        if types >= _ALL:
            types = frozenset(kind for key, kind in _SIGNS.items() if key in given) or _ALL
        return Kinds(types, frozenset[str]().union(*(each.texts for each in found)))


def _any(found: Sequence[Kinds]) -> Kinds:
    types = frozenset[str]().union(*(each.types for each in found))
    return Kinds(types, frozenset[str]().union(*(each.texts for each in found)))


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _kinds_from_type(schema: Mapping[str, object]) -> Kinds:
    """Return the types in ``type``."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else _items(given)
    types = frozenset(each for each in names if isinstance(each, str)) & _ALL
    if types and schema.get("nullable") is True:
        types |= {"null"}
    return Kinds(types or _ALL)


def _kinds_from_enum(schema: Mapping[str, object]) -> Kinds:
    """Return the types and strings in ``enum`` and ``const``."""
    values = [schema["const"]] if "const" in schema else _items(schema.get("enum"))
    texts = frozenset(each for each in values if isinstance(each, str))
    return Kinds(frozenset(map(json_type, values)) or _ALL, texts)


def _resolve(reference: str, root: Mapping[str, object]) -> object:
    found: object = root
    for key in reference.removeprefix("#").split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast("dict[str, object]", found).get(name)
        elif isinstance(found, list) and name.isdecimal() and len(name) < 6:
            found = (cast("list[object]", found)[int(name) :] or [None])[0]
        else:
            return None
    return found


def json_type(value: object) -> str:
    """Return the JSON type of a decoded value."""
    return _NAMES.get(type(value), "object")
