"""What JSON schemas say that the compiler of grammars gets wrong or refuses."""

import json
import logging
import random
import re
from contextlib import suppress
from decimal import Decimal
from itertools import permutations, product

import pytest

from tests.text.grammar.test_gbnf import takes
from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar import Grammar


def matcher_of(schema):
    from llguidance import LLMatcher

    from tests.text.grammar.matchers import _library

    form = LLMatcher.grammar_from_json_schema(Grammar.json_schema(schema).source())
    made = LLMatcher(_library(), form, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


BOUNDS = [
    {"maximum": 2.65},
    {"minimum": 0, "maximum": 99.99},
    {"minimum": 0, "maximum": 0.55},
    {"minimum": 1.1, "exclusiveMaximum": 1.15},
    {"minimum": -2.65, "maximum": -1},
    {"exclusiveMinimum": -3.8802, "exclusiveMaximum": -1},
    {"exclusiveMinimum": 1, "maximum": 1.005},
    {"minimum": -0.5962},
    {"minimum": -88.699, "exclusiveMaximum": 0.0302},
    {"exclusiveMinimum": 12.5},
    {"exclusiveMaximum": -12.5},
    {"minimum": 0.125, "maximum": 7.5, "multipleOf": 0.125},
    {"minimum": -1.5, "maximum": 2.25, "multipleOf": 0.25},
    {"exclusiveMinimum": 2, "maximum": 2.01, "multipleOf": 0.01},
    {"minimum": 0.07, "exclusiveMaximum": 0.08, "multipleOf": 0.01},
    {"exclusiveMinimum": -0.03, "maximum": 0.5, "multipleOf": 0.03},
    {"minimum": -7.5, "maximum": 3.25, "multipleOf": 0.7},
    {"exclusiveMinimum": -7.5, "multipleOf": 1.5},
    {"minimum": 1.5, "exclusiveMinimum": 1.5, "maximum": 2, "exclusiveMaximum": 2.5},
]


def _fits(bounds, value):
    exact = {name: Decimal(repr(bound)) for name, bound in bounds.items()}
    return (
        value >= exact.get("minimum", value)
        and value <= exact.get("maximum", value)
        and value > exact.get("exclusiveMinimum", value - 1)
        and value < exact.get("exclusiveMaximum", value + 1)
        and value % exact.get("multipleOf", value or 1) == 0
    )


def _around(bounds):
    """Texts of numbers about each bound, cut after every digit, without zeros at their end."""
    found = {"0", "1", "-1", "0.5", "-0.25", "3", "17.001"}
    for bound in bounds.values():
        exact = Decimal(repr(bound))
        for place in range(6):
            unit = Decimal(1).scaleb(-place)
            cut = exact.quantize(unit, rounding="ROUND_DOWN")
            found |= {f"{cut + step * unit:f}" for step in range(-2, 3)}
    exact = {Decimal(text).normalize() for text in found}
    return {value: f"{value:f}" for value in exact if value or not value.is_signed()}


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_a_number_fits_where_it_is_within_the_bounds(bounds):
    matcher = matcher_of({"type": "number", **bounds})
    texts = _around(bounds)
    wrong = [text for value, text in texts.items() if takes(matcher, text) != _fits(bounds, value)]
    assert wrong == []


def test_bounds_hold_of_numbers_alone():
    matcher = matcher_of({"maximum": 2.65, "anyOf": [{"minimum": 0.5}, {"type": "null"}]})
    assert [t for t in ('"a"', "null", "2.6", "{}", "0.4", "2.7") if takes(matcher, t)] == [
        '"a"', "null", "2.6", "{}"
    ]  # fmt: skip


WHOLE = {"type": "integer"}
OBJECTS = [
    ({"propertyNames": {"pattern": "^a"}, "additionalProperties": WHOLE},
     [{}, {"ab": 1}], [{"b": 1}, {"ab": "x"}]),
    ({"propertyNames": {"pattern": "^a"}}, [{"a": "x"}], [{"b": 1}]),
    ({"propertyNames": {"enum": ["x", "y"]}}, [{}, {"x": 1, "y": None}], [{"z": 1}]),
    ({"propertyNames": {"const": "x"}, "properties": {"x": WHOLE, "z": WHOLE}},
     [{"x": 1}], [{"z": 1}, {"x": "a"}]),
    ({"propertyNames": {"maxLength": 2, "minLength": 1}},
     [{"a": 1, "ab": 2}], [{"": 1}, {"abc": 1}]),
    ({"propertyNames": {"$ref": "#/$defs/n"},
      "$defs": {"n": {"type": "string", "pattern": "^[a-z]$"}}},
     [{"x": 1}], [{"X": 1}]),
    ({"propertyNames": {"pattern": "^a"}, "properties": {"ab": WHOLE}}, [{"ab": 1}], [{"ac": 1}]),
    ({"propertyNames": False}, [{}], [{"x": 1}]),
    ({"propertyNames": {"minLength": 1}, "properties": {}}, [{"x": 1}], [{"": 1}]),
    ({"propertyNames": {}}, [{"x": 1}], []),
    ({"properties": {"a": WHOLE}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
    ({"properties": {"a": WHOLE}, "unevaluatedProperties": WHOLE},
     [{"a": 1, "b": 2}], [{"b": "x"}]),
    ({"properties": {"a": WHOLE}, "unevaluatedProperties": True}, [{"b": "x"}], [{"a": "x"}]),
    ({"unevaluatedProperties": False}, [{}], [{"b": 1}]),
    ({"allOf": [{"properties": {"a": WHOLE}}, {"properties": {"b": WHOLE}}],
      "unevaluatedProperties": False}, [{"a": 1, "b": 2}], [{"c": 1}]),
    ({"anyOf": [{"properties": {"a": WHOLE}}, {"properties": {"b": WHOLE}}],
      "unevaluatedProperties": False}, [{"a": 1}, {"b": 1}], [{"c": 1}]),
    ({"patternProperties": {"^x": WHOLE}, "unevaluatedProperties": False}, [{"xa": 1}], [{"c": 1}]),
    ({"patternProperties": {"^x": WHOLE}, "anyOf": [{"properties": {"a": WHOLE}}],
      "unevaluatedProperties": False}, [{"a": 1, "xa": 1}], [{"c": 1}, {"xa": "x"}]),
    ({"allOf": [{"properties": {"a": WHOLE}}], "unevaluatedProperties": WHOLE},
     [{"a": 1, "b": 2}], [{"a": 1, "b": "x"}]),
    ({"allOf": [{"properties": {}}, {"properties": {"a": WHOLE}}]}, [{}, {"a": 1}], [{"b": 1}]),
    ({"properties": {}, "anyOf": [{"properties": {"a": WHOLE}}, {}]}, [{}, {"a": 1}], [{"b": 1}]),
    ({"properties": {"a": WHOLE, "abc": WHOLE}, "propertyNames": {"maxLength": 2}},
     [{}, {"a": 1}], [{"abc": 1}, {"b": 1}]),
    ({"properties": {"a": WHOLE, "b": {"type": "null"}, "É": WHOLE},
      "propertyNames": {"pattern": "^[a-z]"}, "additionalProperties": {"type": "boolean"}},
     [{"a": 1, "b": None, "c": True}], [{"É": 1}, {"É": True}, {"a": True}, {"C": True}]),
    ({"properties": {"a": WHOLE, "É": WHOLE}, "propertyNames": {"pattern": "^[a-z]"}},
     [{}, {"a": 1}], [{"É": 1}, {"b": 1}]),
    ({"properties": {"a": WHOLE, "": WHOLE}, "propertyNames": {"minLength": 1},
      "additionalProperties": WHOLE}, [{"a": 1, "b": 1}], [{"": 1}]),
]  # fmt: skip


@pytest.mark.parametrize("case", OBJECTS, ids=lambda case: json.dumps(case[0])[:60])
def test_names_of_properties_are_kept_to(case):
    schema, good, bad = case
    matcher = matcher_of({"type": "object", **schema})
    assert [each for each in good if not takes(matcher, json.dumps(each))] == []
    assert [each for each in bad if takes(matcher, json.dumps(each))] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"propertyNames": {"pattern": "a", "maxLength": 3}}, "propertyNames with pattern, max"),
        ({"propertyNames": {"pattern": "a"}, "patternProperties": {"b": {}}}, "with pattern"),
        ({"propertyNames": {"enum": ["a"]}, "patternProperties": {"b": {}}}, "with pattern"),
        ({"propertyNames": False, "patternProperties": {"b": {}}}, "with pattern"),
        (
            {
                "properties": {"a": {}},
                "propertyNames": {"minLength": 1},
                "patternProperties": {"b": {}},
                "additionalProperties": False,
            },
            "with pattern",
        ),
        (
            {"allOf": [{"patternProperties": {"b": {}}}], "unevaluatedProperties": False},
            "unevaluatedProperties cannot be kept with patternProperties of another part",
        ),
    ],
)
def test_names_that_cannot_be_kept_are_an_error(schema, message):
    with pytest.raises(GrammarError, match=message):
        Grammar.json_schema({"type": "object", **schema}).source()


KINDS = {"integer": ("1", "-20"), "boolean": ("true", "false"), "null": ("null",)}


def _part(rng, names):
    return {name: {"type": rng.choice([*KINDS])} for name in names}


def _union(rng):
    """A schema of an object with alternatives, and the properties that each of them allows."""
    names = iter(rng.sample("abcdefghijk", 11))
    take = lambda least: [next(names) for _ in range(rng.randint(least, 2))]  # noqa: E731
    base, beside = _part(rng, take(0)), _part(rng, take(0))
    choices = [[_part(rng, take(1)) for _ in range(2)] for _ in range(rng.randint(1, 2))]
    made = [{rng.choice(["anyOf", "oneOf"]): [{"properties": p} for p in c]} for c in choices]
    schema = {"properties": base, **made[0], "allOf": [{"properties": beside}, *made[1:]]}
    if rng.random() < 0.5:
        schema["unevaluatedProperties"] = False
    return schema, [
        {**base, **beside, **{k: v for part in parts for k, v in part.items()}}
        for parts in product(*choices)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_an_alternative_excludes_the_names_of_the_others(seed):
    rng = random.Random(seed)
    schema, allowed = _union(rng)
    matcher = matcher_of({"type": "object", **schema})
    names = sorted({*"a", *(name for each in allowed for name in each)})
    for _ in range(60):
        value = {name: rng.choice([*KINDS]) for name in rng.sample(names, rng.randint(0, 4))}
        for each in allowed if rng.random() < 0.7 else ():
            value |= {name: kind["type"] for name, kind in each.items() if name in value}
        fits = [all(k in a and a[k]["type"] == v for k, v in value.items()) for a in allowed]
        texts = {k: rng.choice(KINDS[v]) for k, v in value.items()}
        # Properties come in the order of the schema, which differs between alternatives.
        orders = ([f'"{k}": {texts[k]}' for k in order] for order in permutations(texts))
        taken = any(takes(matcher, f"{{{', '.join(order)}}}") for order in orders)
        assert taken == any(fits), (schema, value)


def test_an_alternative_that_is_a_reference_excludes_the_names_of_the_others():
    found = matcher_of(
        {
            "properties": {"kind": {"type": "string"}},
            "oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/box"}, {"type": "null"}],
            "$defs": {
                "circle": {"properties": {"kind": {"const": "circle"}, "r": WHOLE}},
                "box": {"properties": {"kind": {"const": "box"}, "w": WHOLE}},
            },
        }
    )
    assert takes(found, '{"kind": "circle", "r": 1}')
    assert takes(found, '{"kind": "box", "w": 1}')
    assert takes(found, "null")
    assert not takes(found, '{"kind": "circle", "w": 1}')
    assert not takes(found, '{"kind": "box", "w": 1, "r": "x"}')


@pytest.mark.parametrize("wrong", [5, "x", [], None, [{}]])
@pytest.mark.parametrize(
    "name",
    [
        "properties", "patternProperties", "propertyNames", "anyOf", "allOf", "enum", "required",
        "multipleOf", "minimum", "type", "$ref", "pattern", "items", "prefixItems", "$defs",
        "format", "additionalProperties", "unevaluatedProperties", "oneOf", "const",
    ],
)  # fmt: skip
def test_words_of_wrong_types_do_not_end_the_translation(name, wrong):
    parts = [{"properties": {"a": WHOLE}, "required": ["a", 5]}, {"anyOf": [{name: wrong}, 5]}]
    names = {"propertyNames": {"minLength": wrong}}
    for more in ({}, {"unevaluatedProperties": False}, {"required": ["a"], **names}):
        schema = {"allOf": parts, "properties": {"b": WHOLE}, **more, name: wrong}
        for each in (schema, {"minimum": 0.5, "multipleOf": 0.25, name: wrong}):
            with suppress(GrammarError):
                assert Grammar.json_schema(each).source()


def test_a_format_that_is_unknown_is_ignored_with_one_warning(caplog):
    schema = {"type": "string", "format": "of-a-test"}
    with caplog.at_level(logging.WARNING, "wgpu_backend.text.grammar"):
        assert takes(matcher_of(schema), '"anything"')
        assert takes(matcher_of({"items": schema}), '["x"]')
    assert [each.message for each in caplog.records] == [
        "JSON schema: format 'of-a-test' is unknown and ignored; answers may be any text"
    ]
    named = matcher_of({"type": "object", "properties": {"format": {"const": "of-a-test"}}})
    assert takes(named, '{"format": "of-a-test"}')


# What ECMA-262 (22.2.1, CharacterClass) reads in each class: no operators, no classes within.
@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("^[a&&b]$", "a&b", "c"),
        ("^[a~~b]$", "a~b", "c"),
        ("^[+--]$", "+,-", "."),
        ("^[a-c--]$", "abc-", "d"),
        ("^[[]$", "[", "]"),
        ("^[[a]$", "[a", "]"),
        (r"^[\[\]]$", "[]", "\\"),
        ("^[^a&&b]$", "c~", "ab&"),
        ("^[^]$", "ab[", ()),
        ("^[a-z_-]$", "az_-", "A"),
        (r"^[\d-x]$", "3-x", "y"),
        (r"^[^\u0041-\u0043^]$", "DE", "ABC^"),
        (r"^\[a$", ["[a"], "a"),
        ("^[[:alpha:]]$", [":]", "a]", "[]"], "b"),
    ],
)
def test_classes_of_patterns_are_those_of_json_schema(pattern, fitting, others):
    text = {"type": "string", "pattern": pattern}
    found = matcher_of(text)
    for value in fitting:
        assert takes(found, json.dumps(value)), value
    for value in others:
        assert not takes(found, json.dumps(value)), value
    named = {"patternProperties": {pattern: True}, "additionalProperties": False}
    for words in (named, {"propertyNames": text}):
        names = matcher_of({"type": "object", **words})
        assert takes(names, f"{{{json.dumps(fitting[0])}: 1}}")
        for value in others:
            assert not takes(names, f"{{{json.dumps(value)}: 1}}")


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 2**53 + 1},
        {"enum": [1, -(2**53) - 1]},
        {"properties": {"a": {"const": {"b": [12345678901234567890]}}}},
        {"const": 10**400},
    ],
)
def test_an_integer_that_would_be_another_is_refused(schema):
    with pytest.raises(GrammarError, match=r"JSON schema: const or enum has the integer"):
        Grammar.json_schema(schema).source()


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**60, True, 10**15 + 1])
def test_an_integer_of_a_double_is_itself(value):
    found = matcher_of({"const": value})
    assert takes(found, json.dumps(value))
    assert not takes(found, "1" if value is True else str(value + 1))


LETTERS = 'aZ é你\u0301\ufeff\U0001f600\U0010ffff\ud7ff\ue000\x7f"\\\t\n\0'


def _spell(draw, letter):
    """Write a letter as itself where JSON has it so, or as an escape in either case."""
    utf16 = letter.encode("utf-16-be").hex()
    digits = draw.choice([utf16, utf16.upper()])
    escaped = "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))
    plain = json.dumps(letter, ensure_ascii=False)[1:-1]
    return draw.choice([escaped, plain]) if letter != "\x7f" else escaped


@pytest.mark.parametrize("within", ["{}", '{"a": {}}', "[{}]"])
@pytest.mark.parametrize(
    "bounds", [{}, {"maxLength": 4}, {"minLength": 2, "maxLength": 3}], ids=str
)
def test_any_letter_of_a_text_may_be_an_escape(rng, bounds, within):
    draw, schema = random.Random(int(rng.integers(1 << 30))), {"type": "string", **bounds}
    around = {
        "{}": schema,
        '{"a": {}}': {"properties": {"a": schema}},
        "[{}]": {"type": "array", "items": schema},
    }
    matcher = matcher_of(around[within])
    for _ in range(60):
        value = "".join(draw.choices(LETTERS, k=draw.randint(0, 6)))
        text = within.replace("{}", f'"{"".join(_spell(draw, each) for each in value)}"')
        fits = bounds.get("minLength", 0) <= len(value) <= bounds.get("maxLength", 6)
        assert takes(matcher, text) == fits, text
        assert not fits or json.loads(text) == json.loads(within.replace("{}", json.dumps(value)))


@pytest.mark.parametrize("schema", [{"type": "string"}, {"maxLength": 9}, True], ids=str)
def test_halves_of_pairs_are_not_letters(schema):
    matcher = matcher_of(schema)
    halves = (
        r"\ud83d",
        r"\uDE00",
        r"\ud83dx",
        r"\ud83d\ud83d",
        r"\uDE00\ud83d",
        r"\u12",
        r"\u00g0",
    )
    assert [half for half in halves if takes(matcher, f'"{half}"')] == []
    assert takes(matcher, r'"\ud83d\uDE00"')


def test_escapes_make_no_exception_of_a_pattern():
    matcher = matcher_of({"type": "string", "pattern": "^[a-c]+$"})
    assert takes(matcher, '"abc"')
    assert not takes(matcher, r'"\u0064"')


@pytest.mark.parametrize("rest", [True, {"type": "integer"}], ids=str)
@pytest.mark.parametrize("count", [1, 4, 12])
def test_a_further_name_is_not_a_listed_one_in_another_spelling(rng, count, rest):
    draw = random.Random(int(rng.integers(1 << 30)))
    letters = LETTERS.replace("\x7f", "")
    listed = {"".join(draw.choices(letters, k=draw.randint(0, 3))) for _ in range(count)}
    schema = {"properties": {name: {"type": "string"} for name in listed}}
    matcher = matcher_of({"type": "object", **schema, "additionalProperties": rest})
    # Beginnings and continuations of listed names are others.
    near = {name[:-1] for name in listed} | {name + draw.choice(letters) for name in listed}
    for name in sorted(listed | near | {"", "other"}):
        assert takes(matcher, f"{{{json.dumps(name, ensure_ascii=False)}:1}}") == (
            name not in listed
        ), name
        spelled = "".join(f"\\u{ord(each):04x}" for each in name if ord(each) < 1 << 16)
        if json.loads(f'"{spelled}"') == name and name in listed:
            assert not takes(matcher, f'{{"{spelled}":1}}'), name


def test_a_required_name_may_be_a_further_one():
    schema = {"properties": {"a": {}}, "required": ["b"], "additionalProperties": {"const": 1}}
    matcher = matcher_of({"type": "object", **schema})
    assert takes(matcher, '{"a":0,"b":1}')
    assert not takes(matcher, '{"a":0}')
    assert not takes(matcher, '{"b":2}')


@pytest.mark.parametrize(
    "letters",
    ['[^"]', r"[^\\]", r'[^"\\]', r'[^"\n]', r"[\x00-\x21#-~]", "[^a]", '[^"a-z]', '["]', "[^]"],
)
def test_marks_that_json_escapes_fit_a_class_that_has_them_alone(letters):
    matcher = matcher_of({"type": "string", "pattern": f"^x{letters}$"})
    one = re.compile(r"[\s\S]" if letters == "[^]" else letters)
    for letter in '"\\abé\n\t\0\x1f /':
        text = json.dumps(f"x{letter}", ensure_ascii=False)
        assert takes(matcher, text) == bool(one.match(letter)), (letters, letter)
