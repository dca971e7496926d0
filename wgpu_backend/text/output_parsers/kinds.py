"""Values of arguments that are written without JSON's quotes, by what a schema says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

_MAX_STEPS = 200  # through a schema and what it refers to
_ALL = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_NUMBERS = frozenset({"number", "integer"})
_SIGNS = {
    # Keys of a schema that says no type, and what they are about.
    "properties": "object", "additionalProperties": "object", "required": "object",
    "items": "array", "prefixItems": "array", "minItems": "array", "maxItems": "array",
    "pattern": "string", "minLength": "string", "maxLength": "string", "format": "string",
    "minimum": "number", "maximum": "number", "multipleOf": "number",
    "exclusiveMinimum": "number", "exclusiveMaximum": "number",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kinds:
    """What a schema allows.

    Parameters
    ----------
    types : frozenset of str
        JSON's types; all of them where it says nothing.
    texts : frozenset of str
        Those that it names, in ``enum`` or ``const``.

    Attributes
    ----------
    told : bool
        Whether the schema says anything.
    words : bool
        Whether a text is allowed and no number.
    """

    types: frozenset[str] = _ALL
    texts: frozenset[str] = frozenset()
    told: bool = field(init=False)
    words: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "told", self.types != _ALL)
        words = "string" in self.types and not self.types & _NUMBERS
        object.__setattr__(self, "words", words)


_ANY = Kinds()
_NAMES: dict[type, str] = {
    type(None): "null", bool: "boolean", str: "string", int: "integer", float: "number",
    list: "array",
}  # fmt: skip


def allowed_kinds(schema: object, root: Mapping[str, object]) -> Kinds:
    """Types and texts that a schema allows.

    Parameters
    ----------
    schema : object
    root : mapping
        What ``$ref`` looks into.
    """
    return _Walk(root).allowed(schema)


class _Walk:
    """A walk through a schema, which may refer to itself."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._left = _MAX_STEPS
        self._within: set[int] = set()

    def allowed(self, schema: object) -> Kinds:
        """What a schema allows; anything where it refers to itself."""
        self._left -= 1
        if not isinstance(schema, Mapping):
            return _ANY
        given = cast("Mapping[str, object]", schema)
        if self._left < 0 or id(given) in self._within:
            return _ANY
        self._within.add(id(given))
        found = [_named(given), _listed(given)]
        if isinstance(reference := given.get("$ref"), str):
            found.append(self.allowed(_referred(reference, self._root)))
        options = (_items(given.get(key)) for key in ("anyOf", "oneOf"))
        found += [_any([self.allowed(each) for each in every]) for every in options if every]
        found += [self.allowed(each) for each in _items(given.get("allOf"))]
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


def _named(schema: Mapping[str, object]) -> Kinds:
    """What ``type`` says."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else _items(given)
    types = frozenset(each for each in names if isinstance(each, str)) & _ALL
    if types and schema.get("nullable") is True:
        types |= {"null"}
    return Kinds(types or _ALL)


def _listed(schema: Mapping[str, object]) -> Kinds:
    """What ``enum`` and ``const`` say."""
    values = [schema["const"]] if "const" in schema else _items(schema.get("enum"))
    texts = frozenset(each for each in values if isinstance(each, str))
    return Kinds(frozenset(map(kind_of, values)) or _ALL, texts)


def _referred(reference: str, root: Mapping[str, object]) -> object:
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


def kind_of(value: object) -> str:
    """JSON's type of a value that a decoder made."""
    return _NAMES.get(type(value), "object")
