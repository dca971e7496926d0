"""Everything a user can get wrong is one line on stderr and an exit code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.builders import tiny_model
from tests.cli.conftest import Cli
from wgpu_backend.cli import failures
from wgpu_backend.cli.names import save
from wgpu_backend.errors import OutOfMemory

FAILED, USAGE = 1, 2
CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind that is no good model, and one that is."""
    folder = tmp_path_factory.mktemp("files")
    good = tiny_model(folder / "good.gguf").read_bytes()
    (folder / "truncated.gguf").write_bytes(good[: len(good) // 2])
    (folder / "header.gguf").write_bytes(good[:1000])
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "text.gguf").write_text("Once upon a time, there was a text.")
    (folder / "folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.gguf")
    tiny_model(folder / "unknown.gguf", "unheard-of")
    (folder / "pre.gguf").write_bytes(good.replace(b"gpt-2", b"odd-2"))
    tiny_model(folder / "keyless.gguf", extra={"llama.block_count": None})
    (folder / "template.gguf").write_bytes(good.replace(b"{% endfor %}", b"{% endfro %}"))
    return folder


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("run {}/truncated.gguf hi", FAILED, "truncated.gguf: tensor"),
        ("run {}/header.gguf hi", FAILED, "header.gguf: key 'tokenizer.ggml.tokens'"),
        ("run {}/empty.gguf hi", FAILED, "empty.gguf: 0 bytes, the header of a GGUF file has 24"),
        ("run {}/text.gguf hi", FAILED, "starts with b'Once', a GGUF file starts with b'GGUF'"),
        ("run {}/unknown.gguf hi", FAILED, "unheard-of"),
        ("run {}/pre.gguf hi", FAILED, "pre-tokenizer is 'odd-2', needs one of"),
        ("run {}/keyless.gguf hi", FAILED, "key 'llama.block_count' is missing"),
        ("run {}/template.gguf hi", FAILED, "template"),
        ("show {}/text.gguf", FAILED, "text.gguf: header: starts with b'Once'"),
        ("tokenize {}/pre.gguf hi", FAILED, "pre-tokenizer is 'odd-2'"),
        ("run {}/folder hi", USAGE, "folder: a folder without config.json"),
        ("run {}/missing.gguf", USAGE, "missing.gguf: no such file"),
        ("run {}/missing hi", USAGE, "missing: no such file"),
        ("bench {}/good.gguf {}/missing.gguf", USAGE, "missing.gguf: no such file"),
        ("run {}/good.gguf hi --device teapot", USAGE, "device 'teapot': no such device, there"),
        (
            "run {}/good.gguf hi --num-ctx 0",
            USAGE,
            "--num-ctx: '0', needs a whole number from 1 to",
        ),
        ("run {}/good.gguf hi --num-ctx 99999999", USAGE, "--num-ctx: '99999999', needs a whole"),
        (
            "run {}/good.gguf hi --temperature -1",
            USAGE,
            "--temperature: '-1', needs a number from 0 to 100",
        ),
        ("run {}/good.gguf hi --top-p 2", USAGE, "--top-p: '2', needs a number from 0 to 1"),
        (
            "run {}/good.gguf hi --top-k many",
            USAGE,
            "--top-k: 'many', needs a whole number from 0 to 16777216",
        ),
        (
            "run {}/good.gguf hi --num-predict -5",
            USAGE,
            "--num-predict: '-5', needs a whole number",
        ),
        ("run {}/good.gguf hi --kv q5_1", USAGE, "'q5_1' is not one of 'f16', 'f32', 'q8_0'"),
        ("run {}/good.gguf hi --profile best", USAGE, "'best' is not one of 'full', 'baseline'"),
        ("run {}/good.gguf hi there you", USAGE, "extra argument"),
        ("run {}/good.gguf hi --frobnicate", USAGE, "No such option: --frobnicate"),
        ("logits {}/good.gguf --tokens 1,x -o o.npy", USAGE, "--tokens: 'x' is not a token id"),
        ("logits {}/good.gguf --tokens 1,-2 -o o.npy", USAGE, "--tokens: '-2' is not a token id"),
        ("logits {}/good.gguf --tokens , -o o.npy", USAGE, "--tokens: '' is not a token id"),
        ("logits {}/good.gguf --tokens 270 -o o.npy", USAGE, "the vocabulary of"),
        ("logits {}/good.gguf -o o.npy", USAGE, "needs either --tokens or --prompt"),
        ("logits {}/good.gguf --tokens 1 -o {}/no/o.npy", USAGE, "o.npy: no such folder"),
        ("logits {}/good.gguf --tokens 1", USAGE, "Missing option '--out'"),
        ("profile {}/good.gguf --trace {}/no/o.json", USAGE, "o.json: no such folder"),
        ("bench {}/good.gguf -p 0 -n 0", USAGE, "nothing to measure"),
        ("bench {}/good.gguf -r 0", USAGE, "'-r'"),
        ("bench {}/good.gguf -p 1,x", USAGE, "-p: 'x', needs whole numbers from 0 to 16777216"),
        ("bench {}/good.gguf -n -5", USAGE, "-n: '-5', needs whole numbers from 0"),
        ("bench -m {}/good.gguf,{}/missing.gguf", USAGE, "missing.gguf: no such file"),
        ("bench", USAGE, "bench: needs MODEL, or -m MODEL"),
        ("run {}/good.gguf", USAGE, "stdin is not a terminal and is empty, needs a prompt"),
        ("show", USAGE, "Missing argument 'MODEL'"),
        ("embed {}/good.gguf", USAGE, "embed: needs a TEXT, or --image"),
        ("rerank {}/good.gguf hi", USAGE, "Missing argument 'TEXT...'"),
        ("frobnicate", USAGE, "No such command 'frobnicate'"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(
    cli: Cli, folder: Path, command: str, code: int, said: str
) -> None:
    words = [word.replace("{}", str(folder)) for word in command.split()]
    loads = words[0] in ("run", "logits", "bench", "profile") and "--device" not in words
    done = cli(*words, *(CPU if loads else ()))
    assert (done.code, done.out) == (code, "")
    [line] = done.err.splitlines()
    assert line.startswith("wgpu-backend: ")
    assert said in line


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
@pytest.mark.parametrize(
    "command", ["show {}", "run {} hi", "tokenize {} hi", "bench {}", "embed {} hi", "graph {}"]
)
def test_a_pipe_is_no_model_and_does_not_block(cli: Cli, folder: Path, command: str) -> None:
    path = folder / "pipe.gguf"
    done = cli(*(word.replace("{}", str(path)) for word in command.split()))
    said = f"wgpu-backend: {path}: a pipe, needs a regular file\n"
    assert (done.code, done.out, done.err) == (USAGE, "", said)


@pytest.mark.parametrize("words", [(), ("op",)])
def test_no_command_shows_help_and_says_nothing_else(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert (done.code, done.err) == (USAGE, "")
    assert "Usage: wgpu-backend" in done.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize(
    "command", ["logits {} --tokens 1 -o", "profile {} -p 2 --trace", "graph {} -p 2 --html"]
)
def test_a_full_disk_is_told_with_the_file(cli: Cli, folder: Path, command: str) -> None:
    words = [word.replace("{}", str(folder / "good.gguf")) for word in command.split()]
    done = cli(*words, "/dev/full", *CPU)
    assert done.code == FAILED
    assert done.err.splitlines()[-1] == "wgpu-backend: /dev/full: No space left on device"


def test_a_result_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    def write(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"out\.npy"):
        save(tmp_path / "out.npy", write)
    assert not (tmp_path / "out.npy").exists()


def test_a_prompt_longer_than_the_context_names_both_numbers(cli: Cli) -> None:
    done = cli("run", "story", "fox " * 100, "--num-ctx", "64", *CPU)
    assert (done.code, done.out) == (FAILED, "")
    assert "tokens, the context holds 64; shorten it" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_context_that_does_not_fit_names_both_numbers(
    cli: Cli, tmp_path: Path, adapter: str
) -> None:
    # 4 KiB a position and layer: the most positions that may be asked for take a terabyte.
    extra = {"llama.attention.key_length": 1024, "llama.attention.value_length": 1024}
    model = tiny_model(tmp_path / "wide.gguf", extra=extra)
    done = cli("run", str(model), "hi", "--num-ctx", "16000000", "--device", adapter)
    assert (done.code, done.out) == (FAILED, "")
    assert len(done.err.splitlines()) == 1, done.err


@pytest.mark.parametrize("command", ["show {}/text.gguf", "run {}/text.gguf hi"])
def test_debug_shows_the_traceback_before_the_line(cli: Cli, folder: Path, command: str) -> None:
    words = [word.replace("{}", str(folder)) for word in command.split()]
    done = cli(*words, "--debug")
    assert "Traceback (most recent call last)" in done.err
    assert done.err.splitlines()[-1].startswith("wgpu-backend: ")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyError("x"), FAILED, "internal error: KeyError: 'x'; --debug shows where"),
        (MemoryError("4 TiB"), FAILED, "out of memory: 4 TiB"),
        (OutOfMemory("buffer: 2 GiB,\n   1 GiB is free"), FAILED, "buffer: 2 GiB, 1 GiB is free"),
        (OSError(28, "No space left", "o.npy"), FAILED, "o.npy: No space left"),
        (failures.UsageError("a: b"), USAGE, "a: b"),
    ],
)
def test_an_error_nobody_foresaw_is_a_line_too(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, line: str
) -> None:
    assert failures.report(error) == code
    assert capsys.readouterr().err == f"wgpu-backend: {line}\n"


def test_what_a_file_says_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures.report(failures.UsageError("a\x1b]0;title\x07b\x9b2J"))
    assert capsys.readouterr().err == "wgpu-backend: a]0;titleb2J\n"
