"""A word after `run` is a model, a prompt, or neither; then similar names are suggested."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from wgpu_backend.cli.names import find_similar, split_model_and_prompt

USAGE = 2
CPU = ("--device", "cpu", "--num-predict", "2")


@pytest.mark.parametrize(
    "word",
    [
        "llama3", "qwen2.5:7b", "hf.co/x/y", "mistral-7b-instruct", "hello", "story2", "./missing",
        "models/llama", "models/", "~/llama", "42", "C:\\models\\llama", "org/Llama-3.1-8B@main",
    ],
)  # fmt: skip
def test_a_lone_word_that_may_name_a_model_is_no_prompt(
    cli: Cli, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("run", word, *CPU)
    assert (done.code, done.out) == (USAGE, "")
    [line] = done.err.splitlines()
    assert line.startswith(f"wgpu-backend: {word}: no such file")
    names = not word.startswith((".", "~", "C:")) and not word.endswith("/") and "@" not in word
    assert (f"`wgpu-backend pull {word}` downloads it" in line) == names
    assert line.endswith(f"; to give the word as a prompt: wgpu-backend run story {_quoted(word)}")


def _quoted(word: str) -> str:
    return f"'{word}'" if "\\" in word or "~" in word else word


@pytest.mark.parametrize(
    "text",
    [
        "Tell me a story.",
        "hello there",
        "Hello!",
        "Why?",
        "狐狸",
        "Fin.",
        "...",
        "-",
        "größer",
        "a,b",
    ],
)
def test_what_cannot_name_a_model_is_a_prompt(text: str) -> None:
    assert split_model_and_prompt(text, None) == ("story", text)


def test_a_word_that_names_no_model_is_refused_with_a_prompt_too(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("run", "llama3", "Why is the sky blue?", *CPU)
    assert (done.code, done.out) == (USAGE, "")
    assert done.err == (
        "wgpu-backend: llama3: no such file, and no model of that name in the store; "
        "`wgpu-backend pull llama3` downloads it, `wgpu-backend list` shows what is there\n"
    )


def test_a_word_that_may_name_a_model_is_refused_with_piped_text_too(cli: Cli) -> None:
    assert cli("run", "llama3", *CPU, stdin="Tell me a story.").code == USAGE


@pytest.mark.parametrize("text", ["hello", "llama3"])
def test_after_story_any_word_is_a_prompt(cli: Cli, text: str) -> None:
    assert cli("run", "story", text, *CPU).code == 0


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in (
        "Meta-Llama-3-8B-Instruct.Q4_0.gguf", "qwen2.5-7b-instruct-q4_k_m.gguf", "tiny.gguf",
        "notes.txt",
    ):  # fmt: skip
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("llama3", ["Meta-Llama-3-8B-Instruct.Q4_0.gguf"]),
        ("qwen2.5:7b", ["qwen2.5-7b-instruct-q4_k_m.gguf"]),
        ("Qwen/Qwen2.5-7B-Instruct", ["qwen2.5-7b-instruct-q4_k_m.gguf"]),
        ("tinny.gguf", ["tiny.gguf"]),
        ("tiny", ["tiny.gguf"]),
        ("notes", []),
        ("mixtral", []),
    ],
)
def test_files_of_a_similar_name_are_near(models: Path, word: str, offered: list[str]) -> None:
    assert find_similar(word, models) == offered


def test_files_of_a_similar_name_are_offered(
    cli: Cli, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    said = cli("run", "llama3", *CPU).err
    assert "did you mean Meta-Llama-3-8B-Instruct.Q4_0.gguf?" in said
    assert "did you mean tiny.gguf?" in cli("show", "tinny.gguf").err


def test_files_of_the_folder_that_was_typed_are_offered(cli: Cli, models: Path) -> None:
    assert f"did you mean {models / 'tiny.gguf'}?" in cli("show", str(models / "tinny.gguf")).err


@pytest.mark.parametrize("words", [("",), ("story", ""), ("story", " \n")])
def test_an_empty_prompt_is_refused_not_answered(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli("run", *words, *CPU)
    assert (done.code, done.out) == (USAGE, "")
    assert done.err == "wgpu-backend: run: the prompt is empty; leave it out to chat\n"


def test_a_raw_prompt_may_be_white_space(cli: Cli) -> None:
    assert cli("run", "story", "\n", "--raw", *CPU).code == 0


def test_an_empty_model_is_refused(cli: Cli) -> None:
    assert cli("show", "").err == "wgpu-backend: MODEL is empty, needs a GGUF file or `story`\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a file system with FIFOs")
def test_a_fifo_is_not_waited_for(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.gguf")
    for words in (("show",), ("run", "--device", "cpu")):
        done = cli(*words, str(tmp_path / "fifo.gguf"))
        assert (done.code, done.out) == (USAGE, "")
        assert done.err.endswith("fifo.gguf: a pipe, needs a regular file\n")
