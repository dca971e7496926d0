"""A grammar as data that can be compared, hashed and sent to another process; JSON schemas."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from math import lcm
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import unquote

from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar.patterns import write_classes, write_other_words

# JSON schemas in a form that the compiler accepts, with closed objects.
#
# In llama.cpp, and so in Ollama and llama-cpp-python, an object has only the properties that its
# schema names; by JSON Schema it may have any. Programs omit `additionalProperties` and mean the
# former, and small models add unwanted properties if they may.


Json = dict[str, Any]
# Keywords for human readers.
_ANNOTATIONS = ("title", "description", "$comment", "examples", "default")
# Keywords whose values are data, not schemas.
_DATA = ("const", "enum", "default", "examples")
# Keywords whose values are schemas by name.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_CLOSING = ("additionalProperties", "patternProperties", "minProperties")
# Keywords that list alternatives.
_CHOICES = ("anyOf", "oneOf")
_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    "unknown",
}
_LOG = logging.getLogger("wgpu_backend.grammar")
# Steps through references: clients write schemas, so they may be hostile.
_MOST_STEPS = 200_000


def prepare_schema(schema: Json) -> Json:
    """Return an equivalent schema for the compiler.

    Objects with `properties` are closed unless the schema mentions others. Parts of an `allOf`, and
    other places that describe the same object, stay open by themselves, since each would exclude
    the properties of the others; they are closed together. An alternative of an `anyOf` is closed
    to the names of its other alternatives. Keywords that the compiler rejects are
    rewritten (`unevaluatedProperties`, `propertyNames`, decimal bounds). They are dropped if they
    have no effect (`uniqueItems` that is false) or cannot be enforced (unknown formats, with a
    warning).

    Raises
    ------
    GrammarError
        The schema refers to itself too often, or requires names that cannot be enforced.
    """
    return _SchemaPreparer(schema).prepare(schema)


class _SchemaPreparer:
    """A rewriter of one schema and its parts."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._steps = 0
        self._joined = {id(n): n for n in _schemas(root) if self._is_joined(n)}
        parts = (part for n in self._joined.values() for part in self._siblings(n))
        self._parts = {id(part) for part in parts}
        # Keywords that close an alternative within a join.
        self._closed: dict[int, Json] = {}

    def prepare(self, schema: Any) -> Any:  # noqa: ANN401
        """Return the schema, or its replacement."""
        if isinstance(schema, list):
            return [self.prepare(each) for each in cast("list[Any]", schema)]
        if not isinstance(schema, dict):
            return schema
        given = cast("Json", schema)
        # Before the parts, as it closes the alternatives among them.
        closing = self._closing(given)
        kept = {k: v for k, v in given.items() if not _is_left_out(k, v)}
        found = {name: self._value(name, value) for name, value in kept.items()}
        named = self._close_by_names(given, found) if "propertyNames" in given else {}
        # The compiler tells of properties that are not an object.
        if closing and isinstance(found.setdefault("properties", {}), dict):
            closing["properties"].update(found["properties"])
            found["properties"] = closing["properties"]
        _require_exact(given)
        made = {**closing, **_replace_bounds(given, found), **named}
        joined = id(given) in self._joined or id(given) in self._parts
        return made if joined else _exclude_listed(made)

    def _close_by_names(self, given: Json, found: Json) -> Json:
        """Replace `propertyNames` by properties or patterns that names must fit."""
        names: Any = given["propertyNames"]
        while isinstance(names, dict) and [*cast("Json", names)] == ["$ref"]:
            self._count()
            names = self._resolve(cast("Json", names)["$ref"])
        listed, pattern = _allowed_names(names)
        if "patternProperties" in given and (listed is not None or pattern):
            raise GrammarError(
                "JSON schema: propertyNames with patternProperties cannot be kept; "
                "write the patterns so that they hold for all names, and leave it out"
            )
        if pattern is not None:
            # A part, which holds for names of all properties: patterns beside `properties` don't.
            kept = {"patternProperties": {pattern: True}, "additionalProperties": False}
            found["allOf"] = [*_dicts(found.get("allOf")), kept]
        if listed is None:
            return {}
        own: Any = found.get("properties", {})
        own = cast("Json", own) if isinstance(own, dict) else {}
        told = given.get("additionalProperties", given.get("unevaluatedProperties", not own))
        more = {} if told is False else dict.fromkeys(listed, self.prepare(told))
        kept = {name: value for name, value in own.items() if name in listed}
        return {"properties": more | kept, "additionalProperties": False}

    def _value(self, name: str, value: Any) -> Any:  # noqa: ANN401
        if name in _DATA:
            return value
        if name == "pattern" and isinstance(value, str):
            return write_classes(value)
        if name in _NAMED and isinstance(value, dict):
            inner = cast("Json", value)
            is_pattern = name == "patternProperties"
            return {
                write_classes(key) if is_pattern else key: self.prepare(each)
                for key, each in inner.items()
            }
        return self.prepare(value)

    def _closing(self, given: Json) -> Json:
        """Return the keywords that close an object; empty if they are given here or elsewhere."""
        joined = id(given) in self._joined
        is_told = "unevaluatedProperties" in given
        if id(given) in self._closed:
            return self._closed[id(given)]
        # An empty `properties` says nothing next to a rule of names.
        is_open = "propertyNames" in given and not _names(given)
        own = _has_properties(given) and not is_open
        if id(given) in self._parts or not (joined or is_told or own):
            return {}
        parts = [given, *self._siblings(given)] if joined or is_told else [given]
        if is_told:
            told = any("additionalProperties" in part for part in parts)
            if not told and any("patternProperties" in part for part in parts[1:]):
                raise GrammarError(
                    "JSON schema: unevaluatedProperties cannot be kept with patternProperties of "
                    "another part of the same object; write these next to it"
                )
        else:
            told = any(word in part for part in parts for word in _CLOSING)
        if told:
            return {}
        rest = self.prepare(given.get("unevaluatedProperties", False))
        more: Json = {"additionalProperties": rest}
        if isinstance(patterns := given.get("patternProperties"), dict):
            named = cast("Json", patterns)
            more["patternProperties"] = {write_classes(each): True for each in named}
        self._close_alternatives(given, [], more)
        others = {name: True for part in parts for name in _names(part)}
        return {"properties": others, "additionalProperties": rest}

    def _close_alternatives(self, schema: Json, outer: list[str], more: Json) -> None:
        """Note the keywords that close each alternative in a schema.

        An alternative may have its own names, those of places next to its choice, and `outer`.
        """
        parts, choices = _dicts(schema.get("allOf")), [_dicts(schema.get(w)) for w in _CHOICES]
        if not any(choices) and not any(map(_has_choice, parts)):
            return
        referred = _dicts([self._resolve(schema.get("$ref"))])
        places = [*([part] for part in parts), *choices, referred]
        names = [[n for each in place for n in self._all_names(each)] for place in places]
        for number, place in enumerate(places[:-1]):
            self._count(sum(map(len, names)))
            others = chain.from_iterable(names[:number] + names[number + 1 :])
            beside = [*dict.fromkeys([*outer, *_names(schema), *others])]
            self._count(len(beside) * len(place))
            for each in place:
                if number >= len(parts) and _may_be_object(each):
                    allowed = dict.fromkeys([*beside, *self._all_names(each)], True)
                    self._closed[id(each)] = {"properties": allowed, **more}
                self._close_alternatives(each, beside, more)

    def _all_names(self, schema: Json) -> list[str]:
        """Return the properties that a schema and its siblings name."""
        return [name for each in [schema, *self._siblings(schema)] for name in _names(each)]

    def _is_joined(self, schema: Json) -> bool:
        """Return whether several places at once describe the same object."""
        places = [[each] for each in _dicts(schema.get("allOf"))]
        places += [_dicts(schema.get(word)) for word in _CHOICES]
        places += [[{"$ref": schema["$ref"]}]] if "$ref" in schema else []
        own = _has_properties(schema) or "unevaluatedProperties" in schema
        if own + sum(map(bool, places)) < 2:
            return False
        return own + sum(any(map(self._has_names, place)) for place in places) > 1

    def _has_names(self, schema: Json) -> bool:
        return any(map(_has_properties, [schema, *self._siblings(schema)]))

    def _siblings(self, schema: Json) -> Iterator[Json]:
        """Yield the other schemas that describe the same value, in their order."""
        seen, waiting = {id(schema)}, self._next(schema)
        while waiting:
            self._count()
            each = waiting.pop()
            if id(each) not in seen:
                seen.add(id(each))
                yield each
                waiting += self._next(each)

    def _next(self, schema: Json) -> list[Json]:
        referred = self._resolve(schema.get("$ref"))
        inner = [each for word in ("allOf", *_CHOICES) for each in _dicts(schema.get(word))]
        return [*inner[::-1], *_dicts([referred])]

    def _resolve(self, where: object) -> object:
        """Return the target of a reference within the schema."""
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

    def _count(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise GrammarError(
                f"JSON schema: more than {_MOST_STEPS} steps through its references, needs fewer"
            )


def _is_left_out(name: str, value: object) -> bool:
    """Return whether the compiler must not see a keyword; its effect is expressed otherwise."""
    if name == "format" and isinstance(value, str) and value not in _FORMATS:
        _warn_unknown_format(value[:60])
        return True
    return name in ("unevaluatedProperties", "propertyNames") or (
        name == "uniqueItems" and value is False
    )


@lru_cache(256)
def _warn_unknown_format(name: str) -> None:
    """Warn once that a format is ignored."""
    _LOG.warning("JSON schema: format %r is unknown and ignored; answers may be any text", name)


def _require_exact(schema: Json) -> None:
    """Refuse integers that the compiler would write with other digits: it reads them as doubles."""
    for value in _numbers([schema.get("enum"), schema.get("const")]):
        try:
            is_exact = int(float(value)) == value
        except OverflowError:
            is_exact = False
        if not is_exact:
            raise GrammarError(
                f"JSON schema: const or enum has the integer {_short(value)}, which a double "
                "cannot hold; take one of at most 2^53, or a text"
            )


def _numbers(value: object) -> Iterator[int]:
    """Yield the integers in a JSON value."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value  # pyright: ignore
        for each in cast("list[Any]", inner):
            yield from _numbers(each)


def _allowed_names(schema: Any) -> tuple[list[str] | None, str | None]:  # noqa: ANN401
    """Return the names that a schema of names lists, or else a pattern of them, or neither.

    Raises
    ------
    GrammarError
        The schema has more than one such keyword.
    """
    if schema is False:
        return [], None
    given = cast("Json", schema) if isinstance(schema, dict) else {}
    words = {
        k: v for k, v in given.items() if (k, v) != ("type", "string") and k not in _ANNOTATIONS
    }
    match words:
        case {"enum": list(), **rest} if not rest:
            listed = cast("list[Any]", words["enum"])
            return [name for name in listed if isinstance(name, str)], None
        case {"const": str() as name, **rest} if not rest:
            return [name], None
        case {"pattern": str() as pattern, **rest} if not rest:
            return None, write_classes(pattern)
        case _ if {*words} <= {"minLength", "maxLength"}:
            ends = f"{words.get('minLength', 0)},{words.get('maxLength', '')}"
            return None, rf"^[\s\S]{{{ends}}}$" if words else None
        case _:
            raise GrammarError(
                f"JSON schema: propertyNames with {', '.join(words)}: names can be kept to one of "
                "enum, const, pattern, or minLength and maxLength; leave the rest out"
            )


def _replace_bounds(given: Json, found: Json) -> Json:
    """Replace decimal bounds by schemas that the compiler handles correctly."""
    ranges, multiples = number_ranges(given), number_multiples(given)
    if ranges and "multipleOf" in given:
        ranges, multiples = _divide(ranges, given["multipleOf"], multiples), None
        found = {name: value for name, value in found.items() if name != "multipleOf"}
    gone = (*(BOUNDS if ranges else ()), *(("multipleOf",) if multiples else ()))
    kept = {name: value for name, value in found.items() if name not in gone}
    for choice in filter(None, (ranges, multiples)):
        if "anyOf" not in kept:
            kept["anyOf"] = choice
        else:
            kept["allOf"] = [*kept.get("allOf", ()), {"anyOf": choice}]
    return kept


def _schemas(schema: Any) -> Iterator[Json]:  # noqa: ANN401
    """Yield a schema and all schemas in it."""
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
    """Return the properties that a schema names, with those that it only requires last."""
    named, required = schema.get("properties"), schema.get("required")
    found = [*cast("Json", named)] if isinstance(named, dict) else []
    wanted = cast("list[object]", required) if isinstance(required, list) else []
    return found + [each for each in wanted if isinstance(each, str) and each not in found]


def _has_properties(schema: Json) -> bool:
    """Return whether a schema describes an object by names, maybe none."""
    return isinstance(schema.get("properties"), dict) or bool(_names(schema))


def _has_choice(schema: Json) -> bool:
    """Return whether a schema has alternatives, apart from those that it refers to."""
    parts = _dicts(schema.get("allOf"))
    return any(_dicts(schema.get(word)) for word in _CHOICES) or any(map(_has_choice, parts))


def _may_be_object(schema: Json) -> bool:
    """Return whether a schema may describe an object that it does not spell out."""
    kind = schema.get("type", "object")
    return (kind == "object" or (isinstance(kind, list) and "object" in kind)) and not (
        "const" in schema or "enum" in schema
    )


def _dicts(values: object) -> list[Json]:
    items = cast("list[Any]", values) if isinstance(values, list) else []
    return [each for each in items if isinstance(each, dict)]


# Bounds of numbers. llguidance's expression for a range leaves out numbers that are the beginning
# of a bound, 2.6 under 2.65, and some zeros at the end. It is correct for ranges whose ends differ
# in one decimal place, with the lower end included and the upper one excluded. A range with a
# decimal bound is therefore composed of such ranges.

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_OTHERS = ("string", "boolean", "null", "array", "object")
# Decimal places at which doubles still differ.
_MOST_PLACES = 12
_LARGEST = 10**9
# Decimal places after an excluded bound that may end in zeros.
_NEAR = 8
# Multiples in a range that are listed.
_FEW = 3


class _End(NamedTuple):
    value: Decimal
    included: bool


def number_ranges(schema: Mapping[str, Any]) -> list[Json] | None:
    """Return alternative schemas that together accept the values within a schema's bounds.

    Returns
    -------
    list of dict, or None
        None if the bounds can stay as they are: absent, whole, or bounds of integers.
    """
    kinds = schema.get("type", ["number", *_OTHERS])
    types = cast("list[Any]", [kinds] if isinstance(kinds, str) else kinds)
    given = [name for name in BOUNDS if name in schema]
    if not isinstance(cast("object", types), list) or "number" not in types or not given:
        return None
    values: list[Any] = [schema[name] for name in given]
    if not all(isinstance(value, int | float) and abs(value) < _LARGEST for value in values):
        return None
    exact = [Decimal(repr(value)) for value in values if not isinstance(value, bool)]
    if len(exact) < len(values) or all(value == int(value) for value in exact):
        return None
    ends = {name: _End(v, not name.startswith("ex")) for v, name in zip(exact, given, strict=True)}
    low = max(
        (ends[name] for name in BOUNDS[:2] if name in ends),
        key=lambda end: (end.value, not end.included),
        default=None,
    )
    high = min(
        (ends[name] for name in BOUNDS[2:] if name in ends),
        key=lambda end: (end.value, end.included),
        default=None,
    )
    found = [{"type": "number", **part} for part in _parts(low, high)]
    others = [each for each in types if each in _OTHERS]
    if not found or max(map(_places, exact)) > _MOST_PLACES:
        return None
    return [*found, {"type": others}] if others else found


def number_multiples(schema: Mapping[str, Any]) -> list[Json] | None:
    """Return schemas for the multiples of a decimal, or None if `multipleOf` can stay as it is.

    The compiler accepts 0.25 as a multiple of 0.25, but not 0.5, which has fewer decimal places.
    """
    given = schema.get("multipleOf")
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < _LARGEST:
        return None
    value = Decimal(repr(given))
    places = _places(value)
    if not 2 <= places <= _MOST_PLACES:
        return None
    whole = int(value.scaleb(places))
    return [
        {"multipleOf": _json(Decimal(lcm(whole, 10**fewer)).scaleb(-places))}
        for fewer in range(places + 1)
    ]


def _divide(parts: list[Json], step: Any, choices: list[Json] | None) -> list[Json]:  # noqa: ANN401
    """Keep only multiples of `step` in ranges; `choices` are schemas for a step with decimals.

    The compiler divides in doubles and so finds no multiple in some ranges that have one: 2.01 by
    0.01. Ranges with few multiples are therefore replaced by these.
    """
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < _LARGEST:
        return [{**part, "multipleOf": step} for part in parts]
    unit, found = Decimal(repr(step)), list[Json]()
    for part in parts:
        least, over, most, under = (_decimal(part.get(name)) for name in BOUNDS)
        low, high = over if least is None else least, under if most is None else most
        if low is None or high is None:
            found.append(part | ({"anyOf": choices} if choices else {"multipleOf": step}))
            continue
        first = (low / unit).to_integral_value("ROUND_FLOOR" if least is None else "ROUND_CEILING")
        last = (high / unit).to_integral_value("ROUND_CEILING" if most is None else "ROUND_FLOOR")
        numbers = range(int(first) + (least is None), int(last) + (most is not None))
        if len(numbers) > _FEW:
            found.append(part | ({"anyOf": choices} if choices else {"multipleOf": step}))
            continue
        values = [_json(unit * number) for number in numbers]
        found += [{"type": "number", "minimum": v, "maximum": v} for v in values]
    # Without any, the compiler says so.
    return found or [{**part, "multipleOf": step} for part in parts]


def _decimal(value: Any) -> Decimal | None:  # noqa: ANN401
    return None if value is None else Decimal(repr(value))


def _parts(low: _End | None, high: _End | None) -> Iterator[Json]:
    zero = Decimal(0)
    if low is None or low.value < 0:
        least = None if low is None else _End(-low.value, low.included)
        ceiling = _End(zero, False) if high is None or high.value >= 0 else high
        for part in _positive(_End(-ceiling.value, ceiling.included), least):
            yield _mirror(part)
    if high is None or high.value > 0 or high == (zero, True):
        floor = _End(zero, True) if low is None or low.value < 0 else low
        yield from _positive(floor, high)


def _mirror(part: Json) -> Json:
    return {BOUNDS[BOUNDS.index(name) - 2]: -value for name, value in part.items()}


def _positive(low: _End, high: _End | None) -> Iterator[Json]:
    """Yield parts of a range of non-negative numbers."""
    begin = low.value
    end = begin.to_integral_value("ROUND_CEILING") + 1 if high is None else high.value
    if begin > end or (begin == end and not (low.included and high and high.included)):
        return
    places = max(_places(begin), _places(end))
    if not low.included:
        step = Decimal(1).scaleb(-places)
        yield from _near(begin, step)
        begin += step
    if begin < end:
        yield from _cells(begin, end, places)
    if high is None:
        yield {"minimum": int(end)}
    elif high.included and begin <= end:
        yield {"minimum": _json(end), "maximum": _json(end)}


def _near(bound: Decimal, step: Decimal) -> Iterator[Json]:
    """Yield schemas of the numbers between an excluded bound and one step above it."""
    for _ in range(_NEAR):
        yield _cell(bound + step / 10, bound + step)
        step /= 10
    # With 1 and 1.01 both excluded, the compiler would accept 1.
    if bound != int(bound):
        yield {"exclusiveMinimum": _json(bound), "exclusiveMaximum": _json(bound + step)}


def _cells(low: Decimal, high: Decimal, places: int) -> Iterator[Json]:
    for place in range(places, 0, -1):
        unit = Decimal(1).scaleb(1 - place)
        up = (low / unit).to_integral_value("ROUND_CEILING") * unit
        down = (high / unit).to_integral_value("ROUND_FLOOR") * unit
        if up > down:
            yield _cell(low, high)
            return
        if low < up:
            yield _cell(low, up)
        if down < high:
            yield _cell(down, high)
            # The bound with fewer places itself: 2.6 in the range 2.60 to 2.65.
            yield {"minimum": _json(down), "maximum": _json(down)}
        low, high = up, down
    if low < high:
        yield _cell(low, high)


def _cell(low: Decimal, high: Decimal) -> Json:
    return {"minimum": _json(low), "exclusiveMaximum": _json(high)}


def _places(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _json(value: Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)


def _exclude_listed(schema: Json) -> Json:
    """Keep further names of an object from being listed ones in another spelling.

    The compiler takes a further name next to "a" that spells it by an escape (u0061). Its value
    would then replace the one of "a". Names that fit a pattern have one spelling.
    """
    listed, rest = schema.get("properties"), schema.get("additionalProperties")
    if not isinstance(listed, dict) or not (rest is True or isinstance(rest, dict)):
        return schema
    names = [*cast("Json", listed)]
    lengths = [*map(len, names)]
    if not names or sum(lengths) > _MOST_NAMES or max(lengths) > _LONGEST_NAME:
        return schema
    if any(word in schema for word in _ALONE):
        return schema
    others: Json = {f"^{write_other_words(names)}$": rest}
    return {**schema, "patternProperties": others, "additionalProperties": False}


# Keywords that the rewriting by `_exclude_listed` does not know.
_ALONE = (
    "patternProperties", "minProperties", "maxProperties", "allOf", "anyOf", "oneOf", "$ref",
)  # fmt: skip
# Characters of listed names: of all, and of one, each of which is a group in the last.
_MOST_NAMES, _LONGEST_NAME = 4_000, 80


Kind = Literal["json_schema", "gbnf", "regex", "lark"]
_KINDS = ("json_schema", "gbnf", "regex", "lark")
MOST_BYTES = 1 << 19
# llguidance reads JSON up to 127 levels deep, and each level of a schema takes two.
MOST_DEPTH = 60
# llama.cpp's limit: with more, an uncertain model could write white space without end.
_WHITE_SPACE = r"( |\n[ \t]{0,20})?"
_COMPILED = {
    "whitespace_pattern": _WHITE_SPACE,
    "coerce_one_of": True,
    # As llama.cpp's; models write what they learned, often `\\u` for letters beyond ASCII.
    "json_allow_general_unicode_escapes": True,
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on an answer.

    Parameters
    ----------
    kind : str
        ``json_schema``, ``gbnf`` (llama.cpp's), ``regex`` (Rust's, of the whole answer) or ``lark``
        (llguidance's).
    text : str
        At most 512 KiB.

    Raises
    ------
    GrammarError
        The kind is unknown, or the text is too large, empty or nested too deep.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise GrammarError(f"grammar: kind {self.kind!r}, needs one of {', '.join(_KINDS)}")
        if not isinstance(cast("object", self.text), str):
            found = type(self.text).__name__
            raise GrammarError(f"grammar: a text is needed, got {found}")
        size = len(self.text.encode("utf-8", "replace"))
        if size > MOST_BYTES:
            raise GrammarError(f"grammar: {size} bytes, needs at most {MOST_BYTES}")
        if self.kind == "json_schema":
            _require_schema(self.text)
        elif self.kind != "regex" and not self.text.strip():
            raise GrammarError("grammar: the text is empty, needs at least one rule")

    @classmethod
    def json(cls) -> Grammar:
        """Return the grammar of any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def json_schema(cls, schema: Mapping[str, object] | str | bool) -> Grammar:
        """Return the grammar of JSON that a schema describes, properties in its order.

        Objects have only the properties that the schema names, unless it sets
        `additionalProperties`.

        Parameters
        ----------
        schema : mapping, bool or str
            A string is parsed as JSON.

        Raises
        ------
        GrammarError
            It is not a schema.
        """
        if isinstance(schema, str):
            return cls("json_schema", schema)
        if not isinstance(cast("object", schema), Mapping | bool):
            found = type(schema).__name__
            raise GrammarError(f"JSON schema: needs an object, true or false, got {found}")
        try:
            return cls("json_schema", json.dumps(schema, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"JSON schema: {_one_line(error)}") from None

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """Return a grammar in llama.cpp's notation, which begins with ``root``."""
        return cls("gbnf", text)

    @classmethod
    def regex(cls, text: str) -> Grammar:
        """Return the grammar of texts that an expression matches as a whole."""
        return cls("regex", text)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Return a grammar in llguidance's dialect of Lark, which begins with ``start``."""
        return cls("lark", text)

    @classmethod
    def of_format(cls, form: object) -> Grammar | None:
        """Return the grammar of Ollama's ``format``: ``"json"``, or a schema (mapping or string).

        Returns
        -------
        Grammar or None
            None for None and an empty string, which ask for no constraint.

        Raises
        ------
        GrammarError
            The format is none of these.
        """
        if form is None or form == "":
            return None
        if form == "json":
            return cls.json()
        if isinstance(form, Mapping):
            return cls.json_schema(cast("Mapping[str, object]", form))
        if isinstance(form, str) and form.lstrip().startswith("{"):
            return cls.json_schema(form)
        raise GrammarError(f"format: {_short(form)}, needs 'json' or a JSON schema")

    def source(self) -> str:
        """Return the text for the compiler, with the schema's rules for white space and escapes."""
        if self.kind != "json_schema":
            return self.text
        schema = json.loads(self.text)
        if schema is False:
            return self.text
        prepared = {} if schema is True else prepare_schema(schema)
        return json.dumps({**prepared, "x-guidance": _COMPILED})


def _require_schema(text: str) -> None:
    depth = deepest = 0
    for char in text:
        depth += (char in "{[") - (char in "}]")
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise GrammarError(f"JSON schema: nested {deepest} deep, needs at most {MOST_DEPTH}")
    try:
        schema: object = json.loads(text)
    except ValueError as error:
        raise GrammarError(f"JSON schema: not JSON: {_one_line(error)}") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"JSON schema: {_short(schema)}, needs an object, true or false")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
