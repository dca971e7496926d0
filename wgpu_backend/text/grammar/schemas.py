"""JSON schemas as the compiler is given them: without what it refuses, and with closed objects.

llama.cpp, and so Ollama and llama-cpp-python, lets an object have no properties but those that its
schema names; by JSON Schema it may have any. Programs leave `additionalProperties` out and mean the
former, and small models, once they may, go on with properties that nobody asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar.number_ranges import BOUNDS, number_multiples, number_ranges

Json = dict[str, Any]
_SAID = ("title", "description", "$comment", "examples", "default")  # to readers
_DATA = ("const", "enum", "default", "examples")  # no schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions")  # of schemas by names
_TOLD = ("additionalProperties", "patternProperties", "minProperties")
_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    "unknown",
}
_LOG = logging.getLogger("wgpu_backend.grammar")
_MOST_STEPS = 200_000  # through references; clients write schemas


def prepared(schema: Json) -> Json:
    """The same schema for the compiler.

    Objects with `properties` are closed where nothing is said about others. Parts of an `allOf`,
    and what else describes one object in several places, stay open by themselves, since each would
    rule out what the others name; they are closed together. What the compiler would refuse is said
    otherwise (`unevaluatedProperties`, `propertyNames`, bounds of decimals), or left out where it
    says nothing (`uniqueItems` that are false) or cannot be kept (formats that are unknown, with a
    warning).

    Raises
    ------
    GrammarError
        It refers to itself too often, or asks for names that cannot be kept.
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
        kept = {k: v for k, v in given.items() if not _is_left_out(k, v)}
        found = {name: self._value(name, value) for name, value in kept.items()}
        named = self._named(given, found) if "propertyNames" in given else {}
        closing = named or self._closing(given, found.get("properties"))
        return _bounded(given, found) | closing

    def _named(self, given: Json, found: Json) -> Json:
        """What stands for `propertyNames`: properties, or patterns that names fit."""
        names: Any = given["propertyNames"]
        while isinstance(names, dict) and [*cast("Json", names)] == ["$ref"]:
            self._count()
            names = self._referred(cast("Json", names)["$ref"])
        own = cast("Json", found.get("properties", {}))
        told = given.get("additionalProperties", given.get("unevaluatedProperties", not own))
        other = self.of(told)
        listed, pattern = _names_of(names)
        if listed is not None:
            kept = {name: value for name, value in own.items() if name in listed}
            more = {} if told is False else dict.fromkeys(listed, other)
            return {"properties": more | kept, "additionalProperties": False}
        if told is False or pattern is None:
            return {}
        if "patternProperties" in given:
            raise GrammarError(
                "JSON schema: propertyNames beside patternProperties cannot be kept; "
                "write the patterns so that they hold for all names, and leave it out"
            )
        return {"patternProperties": {pattern: other}, "additionalProperties": False}

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
        is_told = "unevaluatedProperties" in given
        if id(given) in self._parts or not (joined or is_told or isinstance(own, dict)):
            return {}
        parts = [given, *self._beside(given)] if joined or is_told else [given]
        if is_told:
            told = any("additionalProperties" in part for part in parts)
            if not told and any("patternProperties" in part for part in parts[1:]):
                raise GrammarError(
                    "JSON schema: unevaluatedProperties cannot be kept beside patternProperties of "
                    "another part of the same object; write these next to it"
                )
        else:
            told = any(word in part for part in parts for word in _TOLD)
        if told:
            return {}
        others = {name: True for part in parts for name in _names(part)}
        rest = self.of(given.get("unevaluatedProperties", False))
        return {"properties": {**others, **(own or {})}, "additionalProperties": rest}

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


def _is_left_out(name: str, value: object) -> bool:
    """Whether a keyword is not the compiler's: what it says, if anything, is said otherwise."""
    if name == "format" and isinstance(value, str) and value not in _FORMATS:
        _warn_of_format(value[:60])
        return True
    return name in ("unevaluatedProperties", "propertyNames") or (
        name == "uniqueItems" and value is False
    )


@lru_cache(256)
def _warn_of_format(name: str) -> None:
    """Say once that a format is ignored."""
    _LOG.warning("JSON schema: format %r is unknown and ignored; answers may be any text", name)


def _names_of(schema: Any) -> tuple[list[str] | None, str | None]:  # noqa: ANN401
    """Names that a schema of names lists, or else a pattern of them; neither where all fit.

    Raises
    ------
    GrammarError
        It says more than one of these.
    """
    if schema is False:
        return [], None
    given = cast("Json", schema) if isinstance(schema, dict) else {}
    words = {k: v for k, v in given.items() if (k, v) != ("type", "string") and k not in _SAID}
    match words:
        case {"enum": list(), **rest} if not rest:
            listed = cast("list[Any]", words["enum"])
            return [name for name in listed if isinstance(name, str)], None
        case {"const": str() as name, **rest} if not rest:
            return [name], None
        case {"pattern": str() as pattern, **rest} if not rest:
            return None, pattern
        case _ if {*words} <= {"minLength", "maxLength"}:
            ends = f"{words.get('minLength', 0)},{words.get('maxLength', '')}"
            return None, rf"^[\s\S]{{{ends}}}$" if words else None
        case _:
            raise GrammarError(
                f"JSON schema: propertyNames with {', '.join(words)}: names can be kept to one of "
                "enum, const, pattern, or minLength and maxLength; leave the rest out"
            )


def _bounded(given: Json, found: Json) -> Json:
    """A schema with bounds of decimals as the compiler gets them right."""
    ranges, multiples = number_ranges(given), number_multiples(given)
    gone = (*(BOUNDS if ranges else ()), *(("multipleOf",) if multiples else ()))
    kept = {name: value for name, value in found.items() if name not in gone}
    for choice in filter(None, (ranges, multiples)):
        if "anyOf" not in kept:
            kept["anyOf"] = choice
        else:
            kept["allOf"] = [*kept.get("allOf", ()), {"anyOf": choice}]
    return kept


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
