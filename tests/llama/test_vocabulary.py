"""Tokens of a model, compared with llama.h of October 2026."""

import pytest

from wgpu_backend.llama.model import Tokens
from wgpu_backend.text.tokenizer import Tokenizer

KEY = "tokenizer.ggml."
BYTES = [f"<0x{i:02X}>" for i in range(256)]
SPM = {
    "model": "llama", "tokens": ["<unk>", "<s>", "</s>", "\n", *BYTES, "▁", "a", "▁a"],
    "scores": [0.0] * 263, "token_type": [2, 3, 3, 4, *[6] * 256, 1, 1, 1],
    "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
}  # fmt: skip
UNK, BOS, EOS, SPACE, A, SPACE_A = 0, 1, 2, 260, 261, 262


def tokens(**changes: object) -> Tokens:
    keys = {name: value for name, value in {**SPM, **changes}.items() if value is not None}
    metadata = {KEY + name: value for name, value in keys.items()}
    tokenizer = Tokenizer.from_metadata(metadata)
    return Tokens(metadata, tokenizer, tokenizer.vocab_size + 1)


def test_only_control_tokens_are_control():
    asked = tokens()
    assert [asked.is_control(t) for t in (UNK, BOS, EOS, A, 263)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert [asked.token_get_attr(t) for t in (UNK, BOS, 3, 4, A, 263)] == [1, 8, 16, 32, 4, 0]
    assert asked.token_to_piece(UNK) == b""
    assert asked.token_to_piece(UNK, special=True) == b"<unk>"


def test_a_special_token_is_control_even_if_its_type_is_wrong():
    words = [*SPM["tokens"][:-1], "<|im_end|>"]
    asked = tokens(tokens=words)  # llama.cpp overrides the type of what ends a turn
    assert asked.is_control(262)
    assert asked.token_get_attr(262) == 8


@pytest.mark.parametrize(("model", "kind"), [("llama", 1), ("gpt2", 2), ("gemma4", 2), ("t5", 4)])
def test_vocabulary_types_have_llama_cpps_numbers(model: str, kind: int):
    merges = ["▁ a"] if kind == 2 else None
    assert tokens(model=model, merges=merges).vocab_type() == kind


def test_a_line_break_is_spms_byte_token():
    assert tokens().token_nl() == 4 + 10
    words = [word.replace("<0x0A>", "<none>") for word in SPM["tokens"]]
    types = [
        1 if word == "<none>" else kind for word, kind in zip(words, SPM["token_type"], strict=True)
    ]
    assert tokens(tokens=words, token_type=types).token_nl() == 3
    words[3] = "other"
    assert tokens(tokens=words, token_type=types).token_nl() == -1
    assert tokens(tokens=words, token_type=types, padding_token_id=2).token_nl() == 2


@pytest.mark.parametrize(
    ("ids", "options", "want"),
    [
        ([SPACE_A, SPACE_A], {}, b"a a"),
        ([SPACE, A], {}, b"a"),
        ([SPACE, SPACE_A], {}, b" a"),
        ([A], {}, b"a"),
        ([BOS, SPACE_A], {}, b" a"),
        ([BOS, SPACE_A], {"remove_special": True}, b" a"),
        ([BOS, SPACE_A, EOS], {"special": True}, b"<s> a</s>"),
        ([BOS, SPACE_A, EOS], {"special": True, "remove_special": True}, b" a</s>"),
        ([], {}, b""),
    ],
)
def test_detokenize_drops_the_space_that_the_tokenizer_adds(ids, options, want):
    assert tokens().detokenize(ids, **options) == want


def test_detokenize_keeps_spaces_without_a_space_prefix():
    assert tokens(add_space_prefix=False).detokenize([SPACE_A]) == b" a"
