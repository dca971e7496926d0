"""Tokenizers of pipelines: ids as transformers makes them, from whichever files a folder has."""

import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

from wgpu_backend.errors import TokenizerError
from wgpu_backend.images.prompts import open_prompt_tokenizer
from wgpu_backend.text.tokenizer.clip import ClipTokenizer

ARCHIVE = Path(__file__).with_name("data") / "tokenizers.zip"
NAMES = ("clip", "clip-2", "t5", "qwen")
CHARS = (
    "abcdefghijklmnopqrstuvwxyzABCDEIİΣςßé'\".,!?-_()[]0123456789²½ \t\n\r\u00a0\u2003\u200b\u0301"
    "\ufb01ǅ日本語한🙂👩‍🚀<|>/\\“”＃Ａ"
)
WORDS = [
    "a",
    "red",
    "circle",
    "cat",
    "<|endoftext|>",
    "<|startoftext|>",
    "<|im_start|>",
    "<extra_id_3>",
    "</s>",
    "<pad>",
    "'s",
    "'LL",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizers")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(path)
    return path


@pytest.fixture
def old(folder, tmp_path):
    """The same tokenizer without tokenizer.json, as older folders are."""

    def made(name):
        for file in (folder / name).iterdir():
            if file.name != "tokenizer.json":
                (tmp_path / file.name).write_bytes(file.read_bytes())
        if name == "qwen":  # whose added tokens are in a file of their own there
            added = json.loads((folder / name / "tokenizer.json").read_text())["added_tokens"]
            text = json.dumps({token["content"]: token["id"] for token in added})
            (tmp_path / "added_tokens.json").write_text(text)
        return tmp_path

    return made


def known(path):
    return json.loads((path / "known.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers(folder, name):
    tokenizer = open_prompt_tokenizer(folder / name)
    for entry in known(folder / name)["ids"]:
        assert tokenizer.ids(entry["text"]) == entry["ids"], entry["text"]


@pytest.mark.parametrize("name", NAMES)
def test_older_files_make_the_same_ids(folder, old, name):
    tokenizer = open_prompt_tokenizer(old(name))
    for entry in known(folder / name)["ids"]:
        assert tokenizer.ids(entry["text"]) == entry["ids"], entry["text"]


@pytest.mark.parametrize("name", NAMES)
def test_random_texts_are_cut_as_the_library_does(folder, name):
    library = Library.from_file(str(folder / name / "tokenizer.json"))
    tokenizer = open_prompt_tokenizer(folder / name)
    rng = random.Random(name)
    for _ in range(300):
        parts = [
            rng.choice(CHARS) if rng.random() < 0.8 else f" {rng.choice(WORDS)}{rng.choice(' .')}"
            for _ in range(rng.randrange(30))
        ]
        text = "".join(parts)
        assert tokenizer.ids(text) == library.encode(text).ids, text


@pytest.mark.parametrize(("name", "pad"), [("clip", "<|endoftext|>"), ("clip-2", "!")])
def test_rows_of_clip_have_77_tokens(folder, name, pad, caplog):
    tokenizer = open_prompt_tokenizer(folder / name)
    ids = json.loads((folder / name / "tokenizer.json").read_text())["model"]["vocab"]
    made = tokenizer.batch(["a red circle", "", "the " * 90])
    assert made.ids.shape == made.mask.shape == (3, 77)
    assert made.mask.sum(1).tolist() == [5, 2, 77]
    start, end = ids["<|startoftext|>"], ids["<|endoftext|>"]
    assert made.ids[1].tolist() == [start, end] + [ids[pad]] * 75
    assert made.ids[2].tolist() == [start] + [ids["the</w>"]] * 75 + [end]
    [record] = caplog.records
    assert "has 90 tokens, the first 75 are read; left out is 'the the" in record.getMessage()


def test_rows_are_as_long_as_asked_or_as_the_longest(folder):
    t5 = open_prompt_tokenizer(folder / "t5")
    made = t5.batch(["a red circle", "a"], 8)
    assert made.ids.tolist() == [[4, 5, 9, 1, 0, 0, 0, 0], [4, 1, 0, 0, 0, 0, 0, 0]]
    assert t5.batch(["a red circle", "a"], 8, longest=True).mask.tolist() == [[1] * 4, [1, 1, 0, 0]]
    assert t5.batch(["a red circle"], 3).ids.tolist() == [[4, 5, 1]]
    assert made.ids.dtype == np.int64


def test_chats_are_those_of_transformers(folder):
    tokenizer = open_prompt_tokenizer(folder / "qwen")
    for key, text in known(folder / "qwen")["chat"].items():
        assert tokenizer.chat("a red circle", enable_thinking=key.endswith("True")) == text


def test_surrogates_and_empty_rows_do_no_harm(folder):
    tokenizer = open_prompt_tokenizer(folder / "clip")
    assert tokenizer.ids("\ud800") == tokenizer.ids("\ufffd")
    assert tokenizer.batch([""], 2).ids.shape == (1, 2)


def test_what_a_tokenizer_lacks_is_told(folder, tmp_path):
    clip, t5 = (open_prompt_tokenizer(folder / name) for name in ("clip", "t5"))
    for call, message in (
        (lambda: open_prompt_tokenizer(tmp_path), "no tokenizer.json and no tokenizer.model"),
        (lambda: clip.chat("a"), "has no chat template"),
        (lambda: clip.batch(["a"], 1), "rows of 1 tokens, needs a prompt and at least 2"),
        (lambda: t5.batch([]), "0 prompts in rows of 512"),
        (lambda: ClipTokenizer({"a": 0}, [("a", "b")], {}, "a"), "1 tokens and 1 merges of CLIP"),
    ):
        with pytest.raises(TokenizerError, match=message):
            call()


def test_a_special_token_that_is_not_there_is_told(old):
    path = old("clip")
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "<pad>"}))
    with pytest.raises(TokenizerError, match="pad token '<pad>' is not among the 2 special ones"):
        open_prompt_tokenizer(path)
