"""Grammars of every kind over vocabularies of every kind, and hostile grammars."""

import json
import random
import re
import time
from contextlib import suppress

import numpy as np
import pytest

from tests.patience import PATIENCE
from tests.text.grammar.walks import allowed, fits, random_schema, random_text
from tests.text.tokenizer.vocabularies import CONTROL, USER_DEFINED, byte_pairs, sentencepiece
from wgpu_backend.errors import GrammarError, OptionError
from wgpu_backend.text.grammar import Grammar, GrammarVocabulary, apply_mask, mask_words, vocabulary
from wgpu_backend.text.tokenizer import Tokenizer

MERGES = ["a b", "t r", "u e", "tr ue", '{ "', '" :', "Ġ a", "0 0"]
ENDS = (("<s>", CONTROL), ("</s>", CONTROL), ("<|note|>", USER_DEFINED))
PIECES = {"ab": -1.0, "a": -2.0, "b": -3.0, "▁": -4.0, '{"': -5.0, "{": -6.0, '"': -7.0}


def _made(metadata, extra=0):
    tokenizer = Tokenizer.from_metadata(metadata)
    return tokenizer, GrammarVocabulary(tokenizer, tokenizer.vocab_size + extra)


def _byte_pairs(extra=0):
    return _made(byte_pairs(MERGES, ENDS, eos_token_id=256 + len(MERGES) + 1), extra)


KINDS = {
    "gpt2": _byte_pairs,
    "gpt2, padded": lambda: _byte_pairs(45),
    "llama": lambda: _made(sentencepiece(PIECES)),
    "llama, no space in front": lambda: _made(sentencepiece(PIECES, add_space_prefix=False)),
    "gpt2, no end": lambda: _made(byte_pairs(MERGES)),
}


@pytest.fixture(scope="module")
def pairs():
    return _byte_pairs()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_grammar_allows_spells_its_texts_with_every_kind_of_vocabulary(kind):
    tokenizer, vocabulary = KINDS[kind]()
    schema = {"enum": ["ab", "a ż", "ab ab"]}
    rng = random.Random(0)
    found = {
        random_text(vocabulary, tokenizer, Grammar.json_schema(schema), rng) for _ in range(25)
    }
    assert found == {'"ab"', '"a ż"', '"ab ab"'}


@pytest.mark.slow
def test_every_text_of_a_random_schema_parses_and_fits_it(pairs):
    tokenizer, vocabulary = pairs
    rng = random.Random(5)
    wrong, ended = [], 0
    for _ in range(25):
        schema = random_schema(rng)
        for _ in range(3):
            text = random_text(vocabulary, tokenizer, Grammar.json_schema(schema), rng)
            ended += text is not None
            if text is not None and not fits(schema, json.loads(text)):
                wrong.append((schema, text))
    assert not wrong
    assert ended >= 70


LIST = r"""
# as llama.cpp's list.gbnf: lines that begin with a dash
root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]{1,6} "\n"
"""
SUMS = r"""
root ::= (sum "=" " "? term "\n")+
sum ::= term ([-+*/] term)*
term ::= name | number | "(" sum ")"
name ::= [a-z] [a-z0-9_]{0,3}
number ::= [0-9]{1,4}
"""
MOVES = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBRQ])?
castle ::= "O-O" "-O"?
"""
VALUES = r"""
root ::= value
value ::= object | array | string | "true" | "null" | [0-9]{1,3}
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt]){0,5} "\"" ws
ws ::= " "?
"""
MOVE = r"((([a-h]x)?[a-h][1-8](=[NBRQ])?|[NBKQR][a-h]?x?[a-h][1-8]|O-O(-O)?)[+#]?)"
_GBNF = {
    "list": (LIST, lambda text: re.fullmatch(r"(- [^\r\n]{1,6}\n)+", text)),
    "sums": (SUMS, lambda text: all(_is_sum(line) for line in text.removesuffix("\n").split("\n"))),
    "moves": (MOVES, lambda text: re.fullmatch(rf"([1-9]\d?\. {MOVE} {MOVE}\n)+", text)),
    "values": (VALUES, lambda text: json.loads(text) is not Ellipsis),
}


def _is_sum(line):
    left, equal, right = line.rpartition("=")
    name_or_sum = r"[-+*/()a-z0-9_]+"
    sound = re.fullmatch(name_or_sum, left) and re.fullmatch(name_or_sum, right.lstrip(" "))
    return equal and sound and left.count("(") == left.count(")")


@pytest.mark.parametrize("kind", _GBNF)
def test_texts_of_grammars_as_llama_cpp_has_them_are_of_their_kind(pairs, kind):
    tokenizer, vocabulary = pairs
    source, is_one = _GBNF[kind]
    rng = random.Random(3)
    texts = [random_text(vocabulary, tokenizer, Grammar.gbnf(source), rng, 400) for _ in range(8)]
    made = [text for text in texts if text is not None]
    assert made, "no text had an end"
    assert all(is_one(text) for text in made), made


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar.regex(r"[a-c]{2,5}(x|yż)?"), r"[a-c]{2,5}(x|yż)?"),
        (Grammar.lark('start: "<" WORD ">"\nWORD: /[a-z]{1,5}/'), r"<[a-z]{1,5}>"),
        (Grammar.of_format("json"), r"\{.*\}"),
        (Grammar.of_format('{"type": "boolean"}'), r"true|false"),
    ],
)
def test_texts_of_the_other_kinds_are_what_they_say(pairs, grammar, pattern):
    tokenizer, vocabulary = pairs
    rng = random.Random(1)
    texts = [random_text(vocabulary, tokenizer, grammar, rng, 400) for _ in range(6)]
    assert any(texts)
    assert all(re.fullmatch(pattern, text, re.DOTALL) for text in texts if text is not None)


def test_one_of_takes_branches_that_overlap(pairs):
    tokenizer, vocabulary = pairs
    grammar = Grammar.json_schema(
        {"oneOf": [{"const": 1}, {"type": "boolean"}, {"enum": [1, "a"]}]}
    )
    rng = random.Random(0)
    found = {random_text(vocabulary, tokenizer, grammar, rng) for _ in range(30)}
    assert found == {"1", "true", "false", '"a"'}


NUMBER = {"type": "integer", "minimum": 1, "maximum": 1}
POINT = {"type": "object", "properties": {"x": NUMBER}, "required": ["x"]}
PYDANTIC = {
    "$defs": {"Point": {**POINT, "title": "Point"}},
    "properties": {
        "at": {"$ref": "#/$defs/Point"},
        "more": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}], "default": None},
        "all": {"items": {"$ref": "#/$defs/Point"}, "type": "array", "maxItems": 1},
    },
    "required": ["at", "more", "all"],
    "title": "Shape",
    "type": "object",
}
SECOND = {"properties": {"y": NUMBER}, "required": ["y"]}
CLOSED = {
    "as pydantic has it": (
        PYDANTIC,
        [
            {"at": {"x": 1}, "more": more, "all": every}
            for more in (None, {"x": 1})
            for every in ([], [{"x": 1}])
        ],
    ),
    "of parts": ({"type": "object", "allOf": [POINT, SECOND]}, [{"x": 1, "y": 1}]),
    "of parts elsewhere": (
        {"$defs": {"A": POINT}, "type": "object", "allOf": [{"$ref": "#/$defs/A"}, SECOND]},
        [{"x": 1, "y": 1}],
    ),
    "beside a reference": (
        {"$defs": {"A": POINT}, "type": "object", "$ref": "#/$defs/A", **SECOND},
        [{"y": 1, "x": 1}, {"x": 1, "y": 1}],
    ),
    "one or the other": (
        {
            "type": "object",
            "properties": {"x": NUMBER, "y": NUMBER},
            "anyOf": [{"required": ["x"]}, {"required": ["y"]}],
        },
        [{"x": 1}, {"y": 1}, {"x": 1, "y": 1}],
    ),
    "of its own kind": (
        {"$defs": {"A": {**POINT, "properties": {"x": NUMBER, "a": {"$ref": "#/$defs/A"}}}},
         "$ref": "#/$defs/A"},
        None,
    ),
    "named as keywords": (
        {
            "type": "object",
            "properties": {"properties": {"const": {"properties": {}}}},
            "required": ["properties"],
        },
        [{"properties": {"properties": {}}}],
    ),
    "with none": ({"type": "object", "properties": {}}, [{}]),
}  # fmt: skip


@pytest.mark.parametrize("case", CLOSED)
def test_objects_have_the_properties_that_are_named_and_no_others(pairs, case):
    tokenizer, vocabulary = pairs
    schema, wanted = CLOSED[case]
    rng = random.Random(2)
    grammar = Grammar.json_schema(schema)
    texts = [random_text(vocabulary, tokenizer, grammar, rng) for _ in range(12)]
    found = [json.loads(text) for text in texts if text is not None]
    assert found
    assert wanted is None or [each for each in found if each not in wanted] == []
    assert '"b"' not in "".join(filter(None, texts))


def test_what_is_told_of_other_properties_holds(pairs):
    tokenizer, vocabulary = pairs
    rng = random.Random(2)
    for told in ({"additionalProperties": NUMBER}, {"patternProperties": {"^[a-z]$": NUMBER}}):
        grammar = Grammar.json_schema({**POINT, **told})
        texts = [random_text(vocabulary, tokenizer, grammar, rng) for _ in range(12)]
        assert any(len(json.loads(text)) > 1 for text in texts if text is not None)


def test_references_that_lead_to_many_others_are_bounded(pairs):
    link = {f"r{i}": {"allOf": [{"$ref": f"#/$defs/r{i + 1}"}, SECOND]} for i in range(2_000)}
    schema = {"$defs": link | {"r2000": POINT}, "$ref": "#/$defs/r0"}
    with pytest.raises(GrammarError, match="200000 steps through its references"):
        Grammar.json_schema(schema).source()


def test_control_tokens_and_tags_are_no_text(pairs):
    tokenizer, vocabulary = pairs
    matcher = vocabulary.matcher(Grammar.regex(r"(<s>|<\|note\|>)ab"))
    found = [tokenizer.token_text(token) for token in allowed(matcher.mask())]
    assert found == ["<"]


def test_what_is_sure_to_come_is_told_as_the_tokenizer_cuts_it(pairs):
    tokenizer, vocabulary = pairs
    matcher = vocabulary.matcher(Grammar.regex("x?true ab00"))
    assert matcher.forced_tokens() == []
    matcher.take(tokenizer.token_id("x"))
    assert (
        matcher.forced_tokens()
        == tokenizer.encode("true ab00", add_special=False)[: len(matcher.forced_tokens())]
    )
    assert len(matcher.forced_tokens()) >= 2


def test_a_copy_goes_its_own_way(pairs):
    tokenizer, vocabulary = pairs
    one = vocabulary.matcher(Grammar.regex("ax|by"))
    other = one.copy()
    one.take(tokenizer.token_id("a"))
    other.take(tokenizer.token_id("b"))
    assert [tokenizer.token_text(int(t)) for t in allowed(one.mask())] == ["x"]
    assert [tokenizer.token_text(int(t)) for t in allowed(other.mask())] == ["y"]


def test_the_end_is_known_at_once_where_nothing_may_follow(pairs):
    tokenizer, vocabulary = pairs
    matcher = vocabulary.matcher(Grammar.regex("xy?"))
    matcher.take(tokenizer.token_id("x"))
    assert (matcher.is_accepting, matcher.is_ended) == (True, False)
    assert {*allowed(matcher.mask())} >= tokenizer.eog_ids
    matcher.take(tokenizer.token_id("y"))
    assert matcher.is_ended


def test_a_token_that_does_not_fit_is_refused(pairs):
    tokenizer, vocabulary = pairs
    matcher = vocabulary.matcher(Grammar.regex("ab"))
    with pytest.raises(GrammarError, match="does not fit"):
        matcher.take(tokenizer.token_id("x"))


def test_a_mask_leaves_logits_as_they_are_or_rules_them_out(rng):
    logits = rng.standard_normal((3, 70)).astype("f4")
    mask = rng.integers(0, 1 << 32, (3, mask_words(70)), np.uint32)
    found = apply_mask(logits, mask)
    for row, token in np.ndindex(3, 70):
        there = mask[row, token // 32] >> (token % 32) & 1
        assert found[row, token] == (logits[row, token] if there else -np.inf)


def test_a_text_that_no_token_can_spell_is_an_error():
    letters = {"tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b", "ab"]}
    metadata = byte_pairs(["a b"]) | letters
    metadata["tokenizer.ggml.token_type"] = np.array([3, 3, 1, 1, 1], np.int32)
    metadata["tokenizer.ggml.eos_token_id"] = 1
    tokenizer, vocabulary = _made(metadata)
    matcher = vocabulary.matcher(Grammar.regex("a[xy]"))
    matcher.take(tokenizer.token_id("a"))
    with pytest.raises(GrammarError, match="no token of the vocabulary"):
        matcher.mask()


# Hostile ones.


def _chain(count):
    rules = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(count)}
    return json.dumps({"$defs": rules | {f"r{count}": {}}, "$ref": "#/$defs/r0"})


def _nested(depth):
    return '{"items":' * depth + "{}" + "}" * depth


WRONG = {
    "deep schema": (lambda: Grammar.json_schema(_nested(20_000)), "nested 20001 deep, needs at"),
    "no JSON": (lambda: Grammar.json_schema("{"), "JSON schema: not JSON"),
    "no schema": (lambda: Grammar.json_schema("[1]"), "needs an object, true or false"),
    "no object": (lambda: Grammar.json_schema(3), "got int"),
    "large": (lambda: Grammar.regex("a" * (1 << 20)), "1048576 bytes, needs at most 524288"),
    "no kind": (lambda: Grammar("ebnf", "x"), "kind 'ebnf', needs one of"),
    "no rules": (lambda: Grammar.gbnf(" "), "the text is empty"),
    "no format": (lambda: Grammar.of_format("yaml"), "format: 'yaml', needs 'json' or"),
    "wide format": (lambda: Grammar.of_format(["json"]), "needs 'json' or a JSON schema"),
    "chain of references": (lambda: Grammar.json_schema(_chain(5_000)), "crashes the compiler"),
    "remote": (lambda: Grammar.json_schema({"$ref": "http://x/y"}), "http://x/y"),
    "file": (lambda: Grammar.json_schema({"$ref": "file:///etc/passwd"}), "file:///etc/passwd"),
    "unknown keyword": (lambda: Grammar.json_schema({"not": {}}), 'Unimplemented keys: ["not"]'),
    "unique items": (
        lambda: Grammar.json_schema({"type": "array", "items": {}, "uniqueItems": True}),
        'keys: ["uniqueItems"]; answers cannot be kept to that, so leave it out',
    ),
    "itself": (lambda: Grammar.json_schema({"$ref": "#"}), "no text fits"),
    "nothing": (lambda: Grammar.json_schema(False), "Unsatisfiable"),
    "huge list": (lambda: Grammar.json_schema({"enum": [*range(300_000)]}), "needs at most 524288"),
    "many properties": (
        lambda: Grammar.json_schema({"properties": {f"p{i}": {} for i in range(20_000)}}),
        "JSON schema: ",
    ),
    "bad regex": (lambda: Grammar.regex("((("), "unclosed group"),
    "deep regex": (lambda: Grammar.regex("(" * 5_000 + "a" + ")" * 5_000), "regex"),
    "no root": (lambda: Grammar.gbnf('a ::= "b"'), "gbnf grammar:"),
    "deep gbnf": (lambda: Grammar.gbnf("root ::= " + "(" * 9_000 + '"a"'), "nested too deep"),
    "unknown rule": (lambda: Grammar.lark("start: foo"), 'unknown name: "foo"'),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_grammar_that_cannot_be_used_is_told_in_one_line(pairs, case):
    make, message = WRONG[case]
    with pytest.raises(OptionError) as caught:
        pairs[1].matcher(make())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_items_that_need_not_be_unique_are_as_without_the_word(pairs):
    one = {"enum": [{"uniqueItems": False}]}
    form = {"type": "object", "properties": {"uniqueItems": one}, "uniqueItems": False}
    found = json.loads(Grammar.json_schema(form).source())
    assert found["properties"] == {"uniqueItems": one}
    assert "uniqueItems" not in found
    pairs[1].matcher(Grammar.json_schema(form))


def test_a_grammar_that_keeps_the_compiler_busy_is_given_up(pairs, monkeypatch):
    monkeypatch.setattr(vocabulary, "SECONDS", 0.5)
    patterns = [{"type": "string", "pattern": f"(.*a.{{{i}}})"} for i in range(1, 30)]
    begin = time.perf_counter()
    with pytest.raises(GrammarError, match=r"not compiled within 0\.5 s"):
        pairs[1].matcher(Grammar.json_schema({"allOf": patterns}))
    assert time.perf_counter() - begin < PATIENCE


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.regex("(.*a){1,50}b.{200}c"),
        Grammar.regex("(a+)+(b|c)*(a|aa)*x"),
        Grammar.json_schema({"type": "array", "items": {}, "minItems": 100_000}),
        Grammar.json_schema({"type": "string", "maxLength": 10**9}),
        Grammar.gbnf('root ::= root root | "a" | ""'),
    ],
)
def test_the_masks_of_a_costly_grammar_take_a_bounded_time(pairs, grammar):
    tokenizer, vocabulary = pairs
    rng = random.Random(0)
    begin = time.perf_counter()
    with suppress(GrammarError):
        random_text(vocabulary, tokenizer, grammar, rng, 100)
    assert time.perf_counter() - begin < PATIENCE


def test_without_the_package_the_error_says_what_to_install(pairs, monkeypatch):
    monkeypatch.setattr(vocabulary, "find_spec", lambda name: None)
    with pytest.raises(GrammarError, match='pip install "llguidance'):
        pairs[1].matcher(Grammar.regex("never compiled before"))
