"""From tokens to text, whole and as a stream."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.text.tokenizer.vocabularies import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    byte_pairs,
    metadata,
    sentencepiece,
)
from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer import Tokenizer

CHAT = [("<s>", CONTROL), ("</s>", CONTROL), ("<think>", USER_DEFINED)]
RECORDED = Path(__file__).parents[2] / "data" / "detokenised.json"
KEYS = {"bos_token_id": 257, "add_bos_token": True}


@pytest.fixture
def tokenizer():
    return Tokenizer.from_metadata(byte_pairs(special=CHAT, **KEYS))


def test_a_stream_never_splits_a_character(tokenizer):
    ids = tokenizer.encode("a😀é", add_special=False)
    stream = tokenizer.stream()
    assert [stream.push(token) for token in ids] == ["a", "", "", "", "😀", "", "é"]
    assert stream.flush() == ""


def test_a_stream_that_ends_within_a_character_says_so(tokenizer):
    stream = tokenizer.stream()
    ids = tokenizer.encode("😀", add_special=False)
    assert [stream.push(token) for token in ids[:3]] == ["", "", ""]
    assert stream.flush() == "�"


def test_bytes_that_are_no_text_become_replacement_characters(tokenizer):
    first = tokenizer.encode("😀", add_special=False)[0]
    letter = tokenizer.encode("a", add_special=False)[0]
    assert tokenizer.token_bytes(first) == b"\xf0"
    assert tokenizer.decode([first, letter, first]) == "�a�"


def test_a_stream_and_the_whole_are_the_same_text(tokenizer):
    ids = [int(token) for token in np.random.default_rng().integers(tokenizer.vocab_size, size=257)]
    for skip in (True, False):
        stream = tokenizer.stream(skip_special=skip)
        text = "".join(map(stream.push, ids)) + stream.flush()
        assert tokenizer.decode(ids, skip_special=skip) == text


def test_control_tokens_are_hidden_and_user_defined_ones_shown(tokenizer):
    ids = [257, *tokenizer.encode("<think>a", add_special=False), 258]
    assert tokenizer.decode(ids) == "<think>a"
    assert tokenizer.decode(ids, skip_special=False) == "<s><think>a</s>"
    stream = tokenizer.stream()
    assert [stream.push(token) for token in ids] == ["", "<think>", "a", ""]


def test_decoding_undoes_encoding_with_special_tokens(tokenizer):
    for text in ("", " ", "hello  world ", "\x00\u2028", "▁", "<s>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_prefixed_space_is_removed_once():
    spm = Tokenizer.from_metadata(sentencepiece({"▁": -1.0, "a": -2.0, "▁a": -0.5}))
    for text in ("a", " a", "  a", "a a", ""):
        assert spm.decode(spm.encode(text)) == text
    assert spm.decode(spm.encode("a"), skip_special=False) == "<s> a"
    stream = spm.stream()
    assert stream.push(spm.token_id("▁a")) == " a"  # a stream goes on from a prompt


def test_spaces_before_punctuation_are_cleaned_on_request(tokenizer):
    ids = tokenizer.encode("it 's a dog . ' x ' you 're")
    assert tokenizer.decode(ids) == "it 's a dog . ' x ' you 're"
    assert tokenizer.decode(ids, clean=True) == "it's a dog.'x'you're"


@pytest.fixture(scope="module")
def recorded():
    """What llama.cpp makes of its vectors for bert, over the tokens that they need."""
    return json.loads(RECORDED.read_text("utf-8"))["wordpiece"]


@pytest.fixture(scope="module")
def wordpiece(recorded):
    tokens = recorded["tokens"]
    roles = ("unknown_token_id", "cls_token_id", "seperator_token_id")  # as llama.cpp spells it
    kinds = [UNKNOWN, CONTROL, CONTROL, *([NORMAL] * (len(tokens) - 3))]
    ids = {role: i for i, role in enumerate(roles)}
    return Tokenizer.from_metadata(metadata("bert", tokens, kinds, **ids))


def test_wordpiece_decodes_as_llama_cpp_does(wordpiece, recorded):
    assert len(recorded["vectors"]) >= 46
    for text, ids, hidden, shown in recorded["vectors"]:
        assert wordpiece.encode(text, add_special=False) == ids
        assert wordpiece.decode(ids) == hidden
        assert wordpiece.decode(ids, skip_special=False) == shown


def test_what_wordpiece_decodes_to_encodes_to_the_same_tokens(wordpiece, recorded):
    for _, ids, _, shown in recorded["vectors"]:
        assert wordpiece.encode(shown, add_special=False, parse_special=True) == ids


def test_wordpiece_keeps_its_spaces_on_request(wordpiece):
    ids = wordpiece.encode("Hello, y'all!", add_special=False)
    assert wordpiece.decode(ids) == " hello, y'all!"
    assert wordpiece.decode(ids, clean=False) == " hello , y ' all !"


@pytest.mark.parametrize("token", [-1, 260])
def test_an_id_beyond_the_vocabulary_is_refused(tokenizer, token):
    for read in (tokenizer.token_bytes, tokenizer.token_text, lambda i: tokenizer.decode([i])):
        with pytest.raises(TokenizerError, match=f"token is {token}, needs an id below 260"):
            read(token)
