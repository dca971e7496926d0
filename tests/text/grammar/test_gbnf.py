"""GBNF as llama.cpp reads it; errors name line and column.

`gbnf_verdicts.json` has, for each grammar, texts that llama.cpp b11549 takes to their end and texts
that it doesn't, as its own grammar sampler said.
"""

import json
import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from tests.text.grammar.matchers import matcher_of, takes
from tests.text.grammar.random_grammars import LlamaCpp, RandomGrammar, differences
from tests.text.grammar.walks import allowed
from tests.text.tokenizer.vocabularies import CONTROL, USER_DEFINED, byte_pairs
from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar import Grammar, GrammarVocabulary
from wgpu_backend.text.grammar.gbnf import Alt, Chars, GbnfError, Repeat, Seq, parse_gbnf
from wgpu_backend.text.grammar.gbnf_lark import _derivative, write_lark
from wgpu_backend.text.tokenizer import Tokenizer

VERDICTS = json.loads(Path(__file__).with_name("gbnf_verdicts.json").read_text("utf-8"))


@pytest.mark.parametrize("part", range(8))
def test_texts_fit_as_they_do_in_llama_cpp(part):
    wrong = []
    for source in [*VERDICTS][part::8]:
        matcher = matcher_of(write_lark(parse_gbnf(source, {}, 256)))
        for texts, wanted in zip(VERDICTS[source], (True, False), strict=True):
            wrong += [(source, text) for text in texts if takes(matcher, text) != wanted]
    assert wrong == []


def _is_translated(seed):
    try:
        write_lark(parse_gbnf(RandomGrammar(seed).text, {}, 256))
    except GbnfError:
        return False
    return True


def test_random_grammars_are_translated_or_told_wrong():
    assert sum(map(_is_translated, range(60))) > 20


@pytest.mark.slow
def test_many_random_grammars_are_translated_or_told_wrong():
    assert sum(map(_is_translated, range(100, 1100))) > 400


@pytest.mark.slow
def test_random_grammars_have_llama_cpp_s_verdicts():
    pytest.importorskip("xllamacpp", reason="no llama.cpp to compare with")
    with LlamaCpp() as peer:
        assert [each for seed in range(200) for each in differences(seed, peer)] == []
        assert peer.answered > 60


WRONG = {
    'root ::= "a': "line 1, column 12: the grammar ends here, needs the closing quote",
    "root ::= [a": "line 1, column 12: the grammar ends here, needs the closing ]",
    'root ::= "a"\n\n  x ::= [\\q]': "line 3, column 10: escape \\q is unknown, needs one of",
    'root ::= "\\u12"': "line 1, column 11: \\u needs 4 hexadecimal digits",
    'root ::= "\\uD83D\\uDE00"': "U+D83D is half of a surrogate pair",
    'root ::= "\\U00110000"': "U+110000 is beyond U+10FFFF",
    'root ::= ("a"': "line 1, column 14: the grammar ends here, needs )",
    'root ::= "a")': "line 1, column 13: ')', needs an item, | or the end of the line",
    "root ::= *": "line 1, column 11: there is nothing to repeat",
    'root ::= "a"{0}*': "there is nothing to repeat",
    'root ::= "a"{x}': "line 1, column 14: 'x', needs a number of times",
    'root ::= "a"{1 2}': "'2', needs }",
    'root ::= "a"{1000000}': "1000000 times, needs at most 100000",
    'root = "a"': "line 1, column 6: '=', needs ::=",
    'root ::= "a"\r\n| "b"': "line 2, column 1: '|', needs the name of a rule",
    'a ::= "b"': "there is no rule named root",
    'root ::= "a"\nb ::= c': "line 2, column 7: rule c is not defined",
    'root ::= "x" | root "a"': "rule root begins with itself (root → root)",
    'root ::= "b" | a\na ::= "x"? b\nb ::= a': "line 2, column 1: rule a begins with itself",
    "root ::= [b-a]": "no text can match it",
    'root ::= "a" root': "no text can match it",
    "root ::= <[99999]>": "line 1, column 10: token 99999, the model has 300",
    "root ::= <think>": "<think> is no single token of the model",
    "root ::= !x": "'x', needs <",
    "root ::= " + "(" * 200 + '"a"' + ")" * 200: "needs at most 100 levels of groups",
}


@pytest.mark.parametrize("source", WRONG)
def test_what_is_no_grammar_is_told_where(source):
    with pytest.raises(GbnfError) as caught:
        write_lark(parse_gbnf(source, {}, 300))
    assert WRONG[source] in str(caught.value)


def test_a_message_reaches_the_caller_in_one_line():
    with pytest.raises(GrammarError, match=r"^gbnf grammar: line 2, column 6: '=', needs ::=$"):
        _pair()[1].matcher(Grammar.gbnf('# first\nroot = "a"'))


@cache
def _pair():
    ends = (("</s>", CONTROL), ("<think>", USER_DEFINED), ("<|note|>", CONTROL))
    tokenizer = Tokenizer.from_metadata(byte_pairs(["a b"], ends, eos_token_id=257))
    return tokenizer, GrammarVocabulary(tokenizer, tokenizer.vocab_size + 5)


def _next(matcher):
    return {int(token) for token in allowed(matcher.mask())}


def test_a_token_is_named_by_its_id_or_its_text():
    tokenizer, vocabulary = _pair()
    think, pair = tokenizer.token_id("<think>"), tokenizer.token_id("ab")
    for name in ("<think>", f"<[{think}]>"):
        matcher = vocabulary.matcher(Grammar.gbnf(f'root ::= {name} "x"'))
        assert _next(matcher) == {think}
        matcher.take(think)
        assert _next(matcher) == {tokenizer.token_id("x")}
    assert _next(vocabulary.matcher(Grammar.gbnf(f'root ::= <[{pair}]> | "b"'))) == {
        pair, tokenizer.token_id("b")
    }  # fmt: skip


def test_any_token_but_one_is_none_that_ends_and_no_row_without_a_token():
    tokenizer, vocabulary = _pair()
    think = tokenizer.token_id("<think>")
    matcher = vocabulary.matcher(Grammar.gbnf('root ::= !<think>* <think> "x"'))
    assert _next(matcher) == {*range(tokenizer.vocab_size)} - tokenizer.eog_ids
    but = vocabulary.matcher(Grammar.gbnf("root ::= !<think>"))
    assert _next(but) == {*range(tokenizer.vocab_size)} - tokenizer.eog_ids - {think}
    matcher.take(tokenizer.token_id("ab"))
    matcher.take(think)
    assert _next(matcher) == {tokenizer.token_id("x")}


def test_token_names_in_quotes_classes_and_comments_are_text():
    _, vocabulary = _pair()
    source = 'root ::= "<b>" [<x>]+ # <y>\n'
    assert not vocabulary.matcher(Grammar.gbnf(source)).is_accepting


def _lexemes(source):
    return sum(
        line.startswith("T") for line in write_lark(parse_gbnf(source, {}, 256)).splitlines()
    )


def test_a_grammar_without_recursion_is_one_lexeme():
    assert _lexemes('root ::= line+\nline ::= "- " word (" " word)* "\\n"\nword ::= [a-z]+') == 1
    assert _lexemes('root ::= [a-z] root | "."') == 1


def test_what_cannot_be_confused_stays_whole():
    string = 'root ::= "[" (text ("," root)*)? "]" | text\ntext ::= "\\"" [^"]* "\\""'
    assert _lexemes(string) <= 4


@pytest.mark.parametrize(
    "source",
    ['root ::= (word | "(" root ")")*', 'root ::= x*\nx ::= word | "(" x* ")"'],
    ids=["a group", "a rule that repeats itself"],
)
def test_letters_of_a_loop_are_one_lexeme_and_quick(source):
    """A row of the parser keeps at most 2,000 items, and each letter would add one."""
    source = write_lark(parse_gbnf(f"{source}\nword ::= [a-z]", {}, 256))
    matcher = matcher_of(source)
    assert source.count("\nT") == 3
    assert matcher.consume_tokens(list(b"(" + b"a" * 5000))
    assert not matcher.is_accepting()
    assert matcher.consume_tokens(list(b"b)c"))
    assert matcher.is_accepting()


def test_a_grammar_too_large_to_look_through_is_taken_apart(monkeypatch):
    monkeypatch.setattr("wgpu_backend.text.grammar.gbnf_lark._MOST_STEPS", 3)
    matcher = matcher_of(write_lark(parse_gbnf('root ::= "(" root ")" | "ab" | "abc"', {}, 256)))
    assert takes(matcher, "((abc))")
    assert not takes(matcher, "((abc)")


NAMES = r"""
root ::= statement+
statement ::= "int" ws name ";" | "if" ws "(" name ")" statement | name "=" sum ";"
sum ::= name | "(" sum ")"
name ::= [a-z] [a-z0-9]*
ws ::= " "?
"""


def test_a_name_may_begin_with_a_keyword_and_stays_a_lexeme():
    source = write_lark(parse_gbnf(NAMES, {}, 256))
    assert r"/[\x{61}-\x{7A}](?:[\x{30}-\x{39}\x{61}-\x{7A}])*/" in source
    matcher = matcher_of(source)
    good = ("intx;", "int x;int2=(in);", "intint;", "if(if)if=int;", "i=ifs;iffy=(x);", "int=int;")
    assert [text for text in good if not takes(matcher, text)] == []
    bad = ("int;", "int int", "if(x)", "int x=y;", "=x;", "inta=;", "if (x) ;")
    assert [text for text in bad if takes(matcher, text)] == []


A, B = (Chars(((ord(c), ord(c)),)) for c in "ab")
REGULAR = [
    A, Seq((A, B)), Seq((Repeat(A, 0, 1), B)), Seq((A, B, A)), Alt((A, Seq((B, A)))),
    Repeat(A, 2, 3), Repeat(Seq((A, B)), 0, None), Repeat(A, 0, 0), Seq(()),
    Seq((Repeat(A, 0, None), Repeat(B, 1, 2), A)), Repeat(Alt((A, Seq((A, B)))), 1, 2),
    Seq((Alt((A, Seq(()))), Alt((B, Repeat(A, 0, 1))), B)),
]  # fmt: skip


def pattern(node) -> str:
    """Write a regular node as Python's `re` does."""
    if isinstance(node, Chars):
        return "ab"[node.ranges[0][0] - ord("a")]
    if isinstance(node, Repeat):
        most = "" if node.most is None else node.most
        return f"(?:{pattern(node.item)}){{{node.least},{most}}}"
    between = "|" if isinstance(node, Alt) else ""
    return f"(?:{between.join(map(pattern, node.items))})"


def test_a_derivative_matches_what_may_follow():
    for node, code in product(REGULAR, "ab"):
        rest = _derivative(node, ord(code), {})
        for word in ("".join(chars) for n in range(5) for chars in product("ab", repeat=n)):
            follows = rest is not None and re.fullmatch(pattern(rest), word) is not None
            assert follows == (re.fullmatch(pattern(node), code + word) is not None), word
