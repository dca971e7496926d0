"""Types of values that a JSON schema allows, for arguments written without JSON's quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote

# Steps through a schema and its references.
_MAX_STEPS = 200
_ALL = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_NUMBERS = frozenset({"number", "integer"})
# Names of types that tools of Python programs, Gemini and databases have.
_OTHER_NAMES = {
    "str": "string", "text": "string", "char": "string", "varchar": "string", "enum": "string",
    "int": "integer", "long": "integer", "int32": "integer", "int64": "integer",
    "num": "number", "float": "number", "double": "number", "decimal": "number",
    "bool": "boolean", "dict": "object", "map": "object", "list": "array", "tuple": "array",
    "none": "null", "nonetype": "null",
}  # fmt: skip
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


def parameter_kinds(schema: Mapping[str, object], name: str) -> Kinds:
    """Return the types and strings that a function's schema allows for a parameter.

    Parameters
    ----------
    schema : mapping
        The schema of the function's arguments.
    name : str
        Name of the parameter.
    """
    found = _Walk(schema).find_property(schema, name)
    if found is None and isinstance(schema.get(name), Mapping):
        # The parameters themselves, without an object's schema around them.
        return allowed_kinds(schema[name], schema)
    return found or _ANY


def parameter_names(schema: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of a function's parameters, in the order of its schema."""
    return tuple(dict.fromkeys(_Walk(schema).names(schema)))


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
        both = _both(found)
        if both.types < _ALL:
            return both
        types = frozenset(kind for key, kind in _SIGNS.items() if key in given) or _ALL
        return Kinds(types, both.texts)

    def find_property(self, schema: object, name: str) -> Kinds | None:
        """Return the values that an object's schema allows for a name; None if it has none."""
        found: list[Kinds] = []
        for given in self._parts(schema):
            own = _mapping(given.get("properties"))
            others: list[object] = [*_mapping(given.get("patternProperties")).values()]
            others.append(given.get("additionalProperties"))
            if name in own:
                found.append(self.find_kinds(own[name]))
            elif any(isinstance(each, Mapping) for each in others):
                found.append(_any([self.find_kinds(each) for each in others if each]))
            for key in ("anyOf", "oneOf"):
                ways = [self.find_property(each, name) for each in _items(given.get(key))]
                if any(way is not None for way in ways):
                    found.append(_any([way for way in ways if way is not None]))
        return _both(found) if found else None

    def names(self, schema: object) -> Iterator[str]:
        """Yield the names of an object's properties, at times twice."""
        for given in self._parts(schema):
            yield from map(str, _mapping(given.get("properties")))
            for key in ("anyOf", "oneOf"):
                for each in _items(given.get(key)):
                    yield from self.names(each)

    def _parts(self, schema: object) -> Iterator[Mapping[str, object]]:
        """Yield a schema and those that apply with it."""
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return
        given = cast("Mapping[str, object]", schema)
        yield given
        if isinstance(reference := given.get("$ref"), str):
            yield from self._parts(_resolve(reference, self._root))
        for each in _items(given.get("allOf")):
            yield from self._parts(each)


def _both(found: Sequence[Kinds]) -> Kinds:
    types = _ALL
    for each in found:
        types &= each.types | ({"integer"} if "number" in each.types else set[str]())
    return Kinds(types, frozenset[str]().union(*(each.texts for each in found)))


def _any(found: Sequence[Kinds]) -> Kinds:
    types = frozenset[str]().union(*(each.types for each in found))
    return Kinds(types, frozenset[str]().union(*(each.texts for each in found)))


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _kinds_from_type(schema: Mapping[str, object]) -> Kinds:
    """Return the types in ``type``."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else _items(given)
    lower = [each.lower() for each in names if isinstance(each, str)]
    types = frozenset(_OTHER_NAMES.get(each, each) for each in lower) & _ALL
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
    path = unquote(reference.removeprefix("#"))
    if path and not path.startswith("/"):
        return _find_anchor(path, root)
    for key in path.split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast("dict[str, object]", found).get(name)
        elif isinstance(found, list) and name.isdecimal() and len(name) < 6:
            found = (cast("list[object]", found)[int(name) :] or [None])[0]
        else:
            return None
    return found


def _find_anchor(name: str, root: Mapping[str, object]) -> object:
    """Return the definition with a name in ``$anchor`` or ``$id``, or None."""
    known = [*_mapping(root.get("$defs")).values(), *_mapping(root.get("definitions")).values()]
    signs = (("$anchor", name), ("$id", name), ("$id", f"#{name}"))
    return next((d for d in known for key, v in signs if _mapping(d).get(key) == v), None)


def json_type(value: object) -> str:
    """Return the JSON type of a decoded value."""
    return _NAMES.get(type(value), "object")
