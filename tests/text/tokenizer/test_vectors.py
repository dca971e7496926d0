"""Whole vocabularies against the ids that llama.cpp records for them."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.builders import read_tokenizer
from tests.patience import grows_linearly

VOCABULARIES = Path(__file__).parents[4] / "shared" / "data" / "tokenizers"
DETOKENISED = Path(__file__).parents[2] / "data" / "detokenised.json"
NAMES = ["bert-bge", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3"]
NAMES += ["qwen2", "starcoder"]
SEPARATOR = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="module", params=NAMES)
def path(request):
    path = VOCABULARIES / f"ggml-vocab-{request.param}.gguf"
    if not path.exists():
        pytest.skip("the shared vocabularies are not beside this checkout")
    return path


@pytest.fixture(scope="module")
def tokenizer(path):
    return read_tokenizer(path)


def vectors(path):
    texts = Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{path}.out").read_text("utf-8").split("\n")
    return [(text, list(map(int, line.split()))) for text, line in zip(texts, lines, strict=False)]


def test_every_recorded_vector(path, tokenizer):
    cases = vectors(path)
    assert len(cases) >= 46
    got = [tokenizer.encode(text, add_special=False) for text, _ in cases]
    assert [ids for _, ids in cases] == got


def test_decoding_gives_the_text_back(path, tokenizer):
    if "bert" in path.name:
        pytest.skip("WordPiece forgets case and spaces; test_decode.py has what it remembers")
    texts = [text for text, _ in vectors(path)]
    assert texts == [tokenizer.decode(tokenizer.encode(text)) for text in texts]


def test_cleaned_decoding_is_that_of_llama_cpp(path, tokenizer):
    recorded = json.loads(DETOKENISED.read_text("utf-8"))
    name = path.stem.removeprefix("ggml-vocab-")
    if name == "bert-bge":
        wanted = [shown for _, _, _, shown in recorded["wordpiece"]["vectors"]]
    else:
        changed = recorded["cleaned"][name]
        wanted = [changed.get(str(i), text) for i, (text, _) in enumerate(vectors(path))]
    got = [tokenizer.decode(ids, skip_special=False, clean=True) for _, ids in vectors(path)]
    assert got == wanted


def test_streaming_gives_what_decoding_gives(path, tokenizer):
    for text, ids in vectors(path):
        stream = tokenizer.stream()
        streamed = "".join(map(stream.push, ids)) + stream.flush()
        whole = tokenizer.decode(ids, clean=False)
        assert streamed in (whole, " " + whole), text


def test_no_text_becomes_a_control_token(tokenizer):
    texts = [
        tokenizer.token_text(token)
        for token in range(tokenizer.vocab_size)
        if tokenizer.is_control(token)
    ][:300]
    assert texts
    for text in texts:
        for around in (text, f"a {text} b", text * 2):
            ids = tokenizer.encode(around, add_special=False)
            # WordPiece says that it does not know a word by its unknown token.
            known = [token for token in ids if token != tokenizer.special_ids.get("unk")]
            assert not any(map(tokenizer.is_control, known)), around
            shielded = tokenizer.encode(tokenizer.shield(around), False, parse_special=True)
            assert ids == shielded


@pytest.mark.slow
def test_long_runs_of_one_character_take_linear_time(tokenizer):
    def encode(char, nbytes):
        text = char * (nbytes // len(char.encode()))
        assert tokenizer.encode(text, add_special=False) or char in " \n\u200d\u0301"

    for char in "a \n.1漢\u200d\u0301":
        assert grows_linearly(partial(encode, char, 25_000), partial(encode, char, 250_000)), char
