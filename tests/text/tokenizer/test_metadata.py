"""Tokenizer metadata with contradictions, which is refused, and known errors, repaired."""

import logging

import numpy as np
import pytest

from tests.text.tokenizer.vocabularies import (
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    byte_pairs,
    metadata,
    sentencepiece,
)
from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer import PRETOKENIZERS, Tokenizer

PREFIX = "tokenizer.ggml."


def broken(**changes):
    source = {**byte_pairs(), **{PREFIX + key: value for key, value in changes.items()}}
    return {key: value for key, value in source.items() if value is not None}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (broken(model=None), "no tokenizer.ggml.model"),
        (broken(model=3), "model is of type int, needs str"),
        (broken(model="rwkv"), "model is 'rwkv', needs one of gpt2, gemma4, llama, bert, t5"),
        (broken(tokens=None), "tokens is missing"),
        (broken(tokens=[]), "tokens has 0 tokens"),
        (broken(tokens=["a", 1]), "tokens has int at 1, needs strings"),
        (broken(tokens=np.zeros(3)), "tokens is of type ndarray"),
        (broken(token_type=np.ones(3, np.int32)), "token_type has 3 values, needs 257"),
        (broken(token_type=np.ones(257)), "token_type is of type ndarray"),
        (broken(scores=np.zeros(9, np.float32)), "scores has 9 values, needs 257"),
        (broken(scores=np.full(257, np.nan)), "scores has infinite values"),
        (broken(merges=None), "257 tokens and 0 merges"),
        (broken(merges=["ab"]), "merge 0 is 'ab'"),
        (broken(merges=[1]), "merges has int at 0"),
        (broken(eos_token_id=np.uint32(257)), "eos_token_id is 257, needs an id below 257"),
        (broken(bos_token_id="1"), "bos_token_id is of type str, needs int"),
        (broken(bos_token_id=True), "bos_token_id is of type bool, needs int"),
        (broken(add_bos_token=1), "add_bos_token is of type int, needs bool"),
        (broken(add_bos_token=True), "add_bos_token is true but bos_token_id is missing"),
        (broken(pre="nonesuch"), "pre-tokenizer is 'nonesuch', needs one of a.x-4.0, afmoe"),
        (metadata("bert", ["a"]), "bert has no unk token"),
        (metadata("llama", ["<0x0Z>"], [6]), "byte token 0 is '<0x0Z>'"),
        (
            metadata("t5", list("abc"), precompiled_charsmap=np.full(9, 255, np.uint8)),
            "precompiled_charsmap has 9 bytes",
        ),
    ],
)
def test_metadata_that_contradicts_itself(source, message):
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_metadata(source)
    assert message in str(caught.value)


def test_a_damaged_character_map_is_found_in_use():
    # A trie of one entry whose offset points far outside.
    charsmap = np.frombuffer(b"\x04\0\0\0" + b"\xff\xff\xff\xff" + b"ab\0", np.uint8)
    tokens, types = ["<pad>", "</s>", "<unk>", "a"], [CONTROL, CONTROL, 2, NORMAL]
    source = metadata("t5", tokens, types, precompiled_charsmap=charsmap)
    with pytest.raises(TokenizerError, match=r"precompiled_charsmap points at unit .*, has 1"):
        Tokenizer.from_metadata(source).encode("a")


def test_a_text_with_two_ids_is_refused_unless_it_is_padding():
    tokens = ["a", "b", "ab", "a"]
    keys = {"pre": "gpt-2", "merges": ["a b"]}
    with pytest.raises(TokenizerError, match="'a' has ids 0 and 3"):
        Tokenizer.from_metadata(metadata("gpt2", tokens, **keys))
    padded = metadata("gpt2", tokens, [NORMAL, NORMAL, NORMAL, UNUSED], **keys)
    assert Tokenizer.from_metadata(padded).encode("a") == [0]


def test_empty_tokens_get_texts_of_their_own():
    tokenizer = Tokenizer.from_metadata(
        metadata("gpt2", ["a", "", ""], pre="gpt-2", merges=["a a"])
    )
    assert [tokenizer.token_text(1), tokenizer.token_text(2)] == ["[EMPTY_1]", "[EMPTY_2]"]


def test_a_missing_pretokenizer_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "wgpu_backend.text.tokenizer"):
        Tokenizer.from_metadata(broken(pre=None))
    assert "using 'default'" in caplog.text


def test_a_pretokenizer_can_be_overridden():
    with pytest.raises(TokenizerError, match="choose one by pretokenizer="):
        Tokenizer.from_metadata(byte_pairs(), pretokenizer="nonesuch")
    assert Tokenizer.from_metadata(broken(pre="nonesuch"), pretokenizer="qwen2").vocab_size == 257


def test_no_id_of_all_ones_means_no_token():
    tokenizer = Tokenizer.from_metadata(broken(bos_token_id=np.uint32(0xFFFFFFFF)))
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos


def test_control_looking_texts_become_control_tokens():
    special = [(text, NORMAL) for text in ("<|im_end|>", "<|fim_pad|>", "<|file_sep|>", "[EOS]")]
    tokenizer = Tokenizer.from_metadata(byte_pairs(special=special))
    ids = {tokenizer.token_id(text) for text, _ in special}
    assert tokenizer.eog_ids == ids
    assert all(map(tokenizer.is_control, ids))
    assert tokenizer.eot_id == tokenizer.token_id("<|im_end|>")
    assert not ids & set(tokenizer.encode("<|im_end|><|fim_pad|>[EOS]"))


def test_eos_ends_a_generation_whatever_its_text():
    tokenizer = Tokenizer.from_metadata(byte_pairs(special=[("fin", CONTROL)], eos_token_id=257))
    assert tokenizer.eog_ids == {257}


def test_harmony_messages_end_without_ending_the_turn():
    texts = ("<|end|>", "<|return|>", "<|call|>", "<|channel|>")
    tokenizer = Tokenizer.from_metadata(byte_pairs(special=[(text, CONTROL) for text in texts]))
    end, stop, call, channel = map(tokenizer.token_id, texts)
    assert tokenizer.eog_ids == {stop, call}
    assert not tokenizer.is_control(end)
    assert not tokenizer.is_control(channel)
    assert tokenizer.decode([channel, stop]) == "<|channel|>"


def test_a_strike_through_tag_ends_nothing_where_tool_responses_do():
    special = [("</s>", USER_DEFINED), ("<|tool_response>", CONTROL)]
    tokenizer = Tokenizer.from_metadata(byte_pairs(special=special))
    assert tokenizer.eog_ids == {tokenizer.token_id("<|tool_response>")}


def test_defaults_of_sentencepiece_files():
    tokenizer = Tokenizer.from_metadata(sentencepiece({"▁": -1.0}))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, True)
    assert tokenizer.eog_ids == {2}


def test_a_default_does_not_replace_what_a_file_says_is_none():
    absent = {PREFIX + "bos_token_id": np.uint32(0xFFFFFFFF)}
    tokenizer = Tokenizer.from_metadata(sentencepiece({"▁": -1.0}) | absent)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, 2)


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_every_pretokenizer_loses_no_text(name):
    special = [("<s>", CONTROL)]
    tokenizer = Tokenizer.from_metadata(
        byte_pairs(special=special, bos_token_id=257) | {PREFIX + "pre": name}
    )
    text = "It's 1234567 ÉCOLE 漢字かな 한국어\r\n\t 😀!? x=a_b   \n"
    if PRETOKENIZERS[name].byte_level:
        assert tokenizer.decode(tokenizer.encode(text)) == text
