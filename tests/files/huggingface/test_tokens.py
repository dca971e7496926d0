"""Keys of tokenizers, out of the files that folders have."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.files.huggingface.folders import TOKENIZER, VOCABULARY
from wgpu_backend.errors import ModelError, TokenizerError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tokens import tokenizer_keys
from wgpu_backend.text.tokenizer import Tokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = {"type": "ByteLevel", "use_regex": False}


def split(expression):
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def keys(
    path: Path,
    tokenizer: Any = None,
    given: Any = None,
    size: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    if tokenizer is not None:
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    if given is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(given))
    if size is not None:
        settings["vocab_size"] = size
    return tokenizer_keys(path, Settings("config.json", settings))


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ({"type": "ByteLevel", "use_regex": True}, "gpt-2"),
        (sequence(split(LLAMA3), BYTES), "smaug-bpe"),
        (sequence(split(LLAMA3.replace("{1,3}", "")), BYTES), "qwen2"),
        (sequence({"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}), "smollm"),
    ],
)
def test_pre_tokenizers_are_known_by_their_steps(tmp_path, steps, name):
    assert keys(tmp_path, TOKENIZER | {"pre_tokenizer": steps})["tokenizer.ggml.pre"] == name


def test_words_that_are_tokens_need_no_merges_in_llama_3(tmp_path):
    model = TOKENIZER["model"] | {"ignore_merges": True}
    made = keys(
        tmp_path, TOKENIZER | {"model": model, "pre_tokenizer": sequence(split(LLAMA3), BYTES)}
    )
    assert made["tokenizer.ggml.pre"] == "llama-bpe"


def test_byte_pairs(tmp_path):
    added = [*TOKENIZER["added_tokens"], {"id": 114, "content": "<tool>", "special": False}]
    single = [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    known = {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    template = {
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known,
    }  # fmt: skip
    made = keys(
        tmp_path,
        TOKENIZER | {"added_tokens": added, "post_processor": template},
        {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ x }}"},
        size=117,
        pad_token_id=1,
    )
    assert made["tokenizer.ggml.tokens"] == [*VOCABULARY, "<tool>", "[PAD115]", "[PAD116]"]
    assert made["tokenizer.ggml.token_type"][[0, 5, 114, 115]].tolist() == [3, 1, 4, 5]
    assert made["tokenizer.ggml.bos_token_id"] == 0
    assert made["tokenizer.ggml.eos_token_id"] == 1
    assert made["tokenizer.ggml.padding_token_id"] == 1
    assert made["tokenizer.ggml.add_bos_token"] is True
    assert made["tokenizer.chat_template"] == "{{ x }}"
    tokenizer = Tokenizer.from_metadata(made)
    ids = tokenizer.encode(" the<tool>in", add_special=True)
    assert [tokenizer.token_text(i) for i in ids] == ["<s>", "Ġ", "the", "<tool>", "in"]


def test_merges_may_be_texts_or_pairs(tmp_path):
    pairs = TOKENIZER["model"] | {"merges": [m.split() for m in TOKENIZER["model"]["merges"]]}
    made = [keys(tmp_path, TOKENIZER | {"model": m}) for m in (pairs, TOKENIZER["model"])]
    assert made[0]["tokenizer.ggml.merges"] == made[1]["tokenizer.ggml.merges"]


def test_word_pieces_are_marked_where_words_begin(tmp_path):
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "sky": 4, "##s": 5, "blue": 6}
    added = [{"id": i, "content": t, "special": True} for t, i in vocabulary.items() if i < 4]
    made = keys(
        tmp_path,
        {
            "added_tokens": added,
            "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            "model": {"type": "WordPiece", "vocab": vocabulary},
        },
        {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"},
    )
    assert made["tokenizer.ggml.tokens"][3:] == ["[SEP]", "▁sky", "s", "▁blue"]
    assert made["tokenizer.ggml.normalizer.lowercase"] is True
    ids = Tokenizer.from_metadata(made).encode("Blue skys", add_special=True)
    assert ids == [2, 6, 4, 5, 3]


def test_unigrams(tmp_path):
    pieces = [["<s>", 0.0], ["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0], ["▁ab", -2.5]]
    made = keys(
        tmp_path,
        {
            "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
            "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"},
            "model": {"type": "Unigram", "unk_id": 1, "vocab": pieces},
        },
    )
    assert made["tokenizer.ggml.model"] == "t5"
    assert made["tokenizer.ggml.token_type"].tolist() == [3, 2, 1, 1, 1]
    assert made["tokenizer.ggml.add_space_prefix"] is True
    np.testing.assert_array_equal(
        made["tokenizer.ggml.scores"], np.array([0, 0, -1, -2, -2.5], "f4")
    )


def varint(number):
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def message(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def number(field, value):
    return varint(field << 3) + varint(value)


def sentencepiece(pieces, kind=2):
    made = b""
    for text, score, type_ in pieces:
        fixed = varint(2 << 3 | 5) + struct.pack("<f", score)
        made += message(1, message(1, text.encode()) + fixed + number(3, type_))
    return made + message(2, number(3, kind)) + message(3, message(1, b"identity") + number(3, 1))


PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("<0x0A>", 0.0, 6), ("▁t", -1.0, 1), ("he", -2.0, 1)]


def test_sentencepiece_models_are_read_without_their_library(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(PIECES))
    given = {"added_tokens_decoder": {"5": {"content": "<|im|>", "special": False}}}
    made = keys(tmp_path, given=given, size=7, bos_token_id=1)
    assert made["tokenizer.ggml.model"] == "llama"
    assert made["tokenizer.ggml.tokens"] == [*(p[0] for p in PIECES), "<|im|>", "[PAD6]"]
    assert made["tokenizer.ggml.token_type"].tolist() == [2, 3, 6, 1, 1, 3, 5]
    assert made["tokenizer.ggml.bos_token_id"] == 1
    np.testing.assert_array_equal(made["tokenizer.ggml.scores"][:5], [p[1] for p in PIECES])


@pytest.mark.parametrize(
    ("data", "message_"),
    [
        (b"", "0 pieces, needs at least 1"),
        (sentencepiece(PIECES)[:-3] + b"\xff", "not a SentencePiece model"),
        (message(1, message(1, b"a") + number(3, 9)), "piece 'a' of type 9, needs 1 to 6"),
        (b"\x0a\xff\x7f", "field of 16383 bytes at byte 3, 0 are left"),
        (b"\x80" * 12, "a number of more than 10 bytes"),
    ],
)
def test_damaged_sentencepiece_models_are_told(tmp_path, data, message_):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(TokenizerError, match=message_) as told:
        keys(tmp_path)
    assert "tokenizer.model" in str(told.value)


@pytest.mark.parametrize(
    ("change", "message_"),
    [
        (
            {"model": {"type": "Story"}},
            "key 'model' is of type 'Story', needs one of BPE, WordPiece",
        ),
        ({"model": 3}, "key 'model' is missing, needs an object"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}}}, "key 'model.vocab' needs strings and"),
        ({"added_tokens": [{"id": "x"}]}, "key 'added_tokens' has one without id"),
    ],
)
def test_damaged_tokenizer_files_are_told(tmp_path, change, message_):
    with pytest.raises((TokenizerError, ModelError), match=message_):
        keys(tmp_path, TOKENIZER | change)
