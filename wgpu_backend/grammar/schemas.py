"""JSON schemas as the compiler is given them: without what it refuses, and with closed objects.

llama.cpp, and so Ollama and llama-cpp-python, lets an object have no properties but those that its
schema names; by JSON Schema it may have any. Programs leave `additionalProperties` out and mean the
former, and small models, once they may, go on with properties that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

from wgpu_backend.errors import GrammarError

Json = dict[str, Any]
_DATA = ("const", "enum", "default", "examples")  # no schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions")  # of schemas by names
_TOLD = ("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties")
_MOST_STEPS = 200_000  # through references; clients write schemas


def prepared(schema: Json) -> Json:
    """The same schema for the compiler.

    Objects with `properties` are closed where nothing is said about others. Parts of an `allOf`,
    and what else describes one object in several places, stay open by themselves, since each would
    rule out what the others name; they are closed together. `uniqueItems` that are false, which the
    compiler would refuse, are left out.

    Raises
    ------
    GrammarError
        It refers to itself too often.
    """
    return _Preparing(schema).of(schema)


class _Preparing:
    def __init__(self, root: Json) -> None:
        self._root = root
        self._steps = 0
        self._joined = {id(n): n for n in _schemas(root) if self._is_joined(n)}
        parts = (part for n in self._joined.values() for part in self._beside(n))
        self._parts = {id(part) for part in parts}

    def of(self, schema: Any) -> Any:  # noqa: ANN401
        """A schema, or what stands in its place."""
        if isinstance(schema, list):
            return [self.of(each) for each in cast("list[Any]", schema)]
        if not isinstance(schema, dict):
            return schema
        given = cast("Json", schema)
        kept = {k: v for k, v in given.items() if k != "uniqueItems" or v is not False}
        found = {name: self._value(name, value) for name, value in kept.items()}
        return found | self._closing(given, found.get("properties"))

    def _value(self, name: str, value: Any) -> Any:  # noqa: ANN401
        if name in _DATA:
            return value
        if name in _NAMED and isinstance(value, dict):
            inner = cast("Json", value)
            return {key: self.of(each) for key, each in inner.items()}
        return self.of(value)

    def _closing(self, given: Json, own: Any) -> Json:  # noqa: ANN401
        """What closes an object; nothing where that is told, or told elsewhere."""
        joined = id(given) in self._joined
        if id(given) in self._parts or not (joined or isinstance(own, dict)):
            return {}
        parts = [given, *self._beside(given)] if joined else [given]
        if any(word in part for part in parts for word in _TOLD):
            return {}
        others = {name: True for part in parts for name in _names(part)}
        return {"properties": {**others, **(own or {})}, "additionalProperties": False}

    def _is_joined(self, schema: Json) -> bool:
        """Whether an object is described in several places at once."""
        places = [[each] for each in _dicts(schema.get("allOf"))]
        places += [_dicts(schema.get(word)) for word in ("anyOf", "oneOf")]
        places += [[{"$ref": schema["$ref"]}]] if "$ref" in schema else []
        own = bool(_names(schema))
        if own + sum(map(bool, places)) < 2:
            return False
        return own + sum(any(map(self._has_names, place)) for place in places) > 1

    def _has_names(self, schema: Json) -> bool:
        return any(_names(each) for each in [schema, *self._beside(schema)])

    def _beside(self, schema: Json) -> Iterator[Json]:
        """Schemas that describe the same value as another, in their order."""
        seen, waiting = {id(schema)}, self._next(schema)
        while waiting:
            self._count()
            each = waiting.pop()
            if id(each) not in seen:
                seen.add(id(each))
                yield each
                waiting += self._next(each)

    def _next(self, schema: Json) -> list[Json]:
        referred = self._referred(schema.get("$ref"))
        inner = [each for word in ("allOf", "anyOf", "oneOf") for each in _dicts(schema.get(word))]
        return [*inner[::-1], *_dicts([referred])]

    def _referred(self, where: object) -> object:
        """What a reference within the schema means."""
        if not isinstance(where, str) or not (where + "/").startswith("#/"):
            return None
        found: Any = self._root
        for step in where.split("/")[1:]:
            self._count()
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):  # pyright: ignore[reportUnknownArgumentType]
                found = cast("Any", found[int(name[:9])])
            else:
                found = cast("Json", found).get(name) if isinstance(found, dict) else None
        return found

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise GrammarError(
                f"JSON schema: more than {_MOST_STEPS} steps through its references, needs fewer"
            )


def _schemas(schema: Any) -> Iterator[Json]:  # noqa: ANN401
    """A schema and all in it."""
    if isinstance(schema, list):
        for each in cast("list[Any]", schema):
            yield from _schemas(each)
    elif isinstance(schema, dict):
        given = cast("Json", schema)
        yield given
        for name, value in given.items():
            if name in _NAMED and isinstance(value, dict):
                yield from _schemas([*cast("Json", value).values()])
            elif name not in _DATA:
                yield from _schemas(value)


def _names(schema: Json) -> list[str]:
    """Properties that a schema names itself, those that it only requires last."""
    named, required = schema.get("properties"), schema.get("required")
    found = [*cast("Json", named)] if isinstance(named, dict) else []
    wanted = cast("list[object]", required) if isinstance(required, list) else []
    return found + [each for each in wanted if isinstance(each, str) and each not in found]


def _dicts(values: object) -> list[Json]:
    items = cast("list[Any]", values) if isinstance(values, list) else []
    return [each for each in items if isinstance(each, dict)]
