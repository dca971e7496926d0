"""Random texts whose tokens once differed from llama.cpp's."""

import json
from pathlib import Path

import pytest

from tests.builders import read_tokenizer
from tests.text.tokenizer.vocabularies import CONTROL, NORMAL, UNKNOWN, metadata
from wgpu_backend.text.tokenizer import Tokenizer

VOCABULARIES = Path(__file__).parents[4] / "shared" / "data" / "tokenizers"
RECORDED = json.loads((Path(__file__).parents[2] / "data" / "tokenised.json").read_text("utf-8"))
KINDS = {"[UNK]": UNKNOWN, "[CLS]": CONTROL, "[SEP]": CONTROL}


@pytest.fixture(scope="module")
def word_pieces():
    tokens = RECORDED["wordpiece"]["tokens"]
    roles = {
        "bos_token_id": tokens.index("[CLS]"),
        "seperator_token_id": tokens.index("[SEP]"),
        "unknown_token_id": tokens.index("[UNK]"),
    }
    types = [KINDS.get(text, NORMAL) for text in tokens]
    return Tokenizer.from_metadata(metadata("bert", tokens, types, **roles))


@pytest.mark.parametrize(("text", "ids"), RECORDED["wordpiece"]["vectors"], ids=ascii)
def test_word_pieces_of_a_random_text(word_pieces, text, ids):
    assert word_pieces.encode(text, add_special=False) == ids


@pytest.mark.parametrize("name", RECORDED["whole"])
def test_tokens_of_random_texts(name):
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip("the shared vocabularies are not beside this checkout")
    tokenizer = read_tokenizer(path)
    for text, ids in RECORDED["whole"][name]:
        assert tokenizer.encode(text, add_special=False, parse_special=True) == ids, ascii(text)
