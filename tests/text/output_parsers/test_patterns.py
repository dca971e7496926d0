"""Possessive groups, and the atomic groups that replace them on older versions of Python."""

import re

import numpy as np
import pytest

from wgpu_backend.text.output_parsers import gemma, incoming_text, literals
from wgpu_backend.text.output_parsers.patterns import (
    HAS_POSSESSIVE_GROUPS,
    compile_possessive,
    make_atomic,
)

STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# Text, and how much of it strings and words match: a string that does not end is none of it.
CASES = {'a "b': 2, '"a": "b': 5, '"a': 0, '"a\\"b': 0, '"x", "a\\"b" "c': 12, '"a" "b"': 7}


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("change", [str, make_atomic])
def test_a_repetition_that_fails_is_not_counted(change, text):
    pattern = change(rf"(?:[\s\w,:]++|{STRING})*+")
    compiled = compile_possessive(pattern, re.DOTALL)
    found = compiled.match(text)
    assert found is not None
    assert found.end() == CASES[text]


def test_groups_alone_change_with_all_their_repetitions():
    assert make_atomic(r"[)(*]*+a++(b)?+") == r"[)(*]*+a++(?>(b)?)"
    assert make_atomic(r"(?:a(?:\)|b)++c)*+") == r"(?>(?:a(?>(?:\)|b)+)c)*)"
    assert make_atomic(r"(a)*(b)+(c)?[^]()]*+") == r"(a)*(b)+(c)?[^]()]*+"


@pytest.mark.skipif(not HAS_POSSESSIVE_GROUPS, reason="this Python has atomic groups alone")
def test_both_forms_match_the_same():
    patterns = [
        gemma._PLAIN, gemma._CALL, gemma._PAIR, literals._TEXT, literals._ARGUMENT,
        literals._Reader.passing, literals._Reader.comma, incoming_text._FLAT["json"],
        *incoming_text._UNQUOTED.values(),
    ]  # fmt: skip
    pieces = [
        "a", "1", " ", "\n", ",", ":", "=", "'", '"', "'''", '"""', "\\", "#", "{", "}", "[", ")",
        "call:f{", "<escape>", "<", '<|"|>', "True", "k:", "k=",
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    for pattern in patterns:
        atomic = re.compile(make_atomic(pattern.pattern), pattern.flags)
        assert atomic.pattern != pattern.pattern
        for _ in range(300):
            text = "".join(rng.choice(pieces, rng.integers(1, 16)))
            one, other = pattern.match(text), atomic.match(text)
            assert (one and one.regs) == (other and other.regs), (pattern.pattern, text)
