"""Every option of every command, given values that it cannot have: one line and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from tests.builders import tiny_model
from tests.cli.conftest import Cli
from wgpu_backend.cli.app import app
from wgpu_backend.cli.parameters import PARAMETERS

USAGE = 2
LONG, HUGE = "x" * 5000, "9" * 400
NO_TEXT = ("größe", "a\nb", "\0", "\x1b[31m", "\udcff", LONG)
NO_NUMBER = ("", "nan", "inf", "-inf", "1e999", "--", "many", HUGE, f"-{HUGE}", *NO_TEXT)
NO_COUNT = (*NO_NUMBER, "-5", "1.5", "99999999999999999999")
NO_FILE = ("", ".", "no/such/folder", "/dev/null/x", "\0", LONG)
WRONG = {
    "n_prompt": NO_COUNT, "n_gen": NO_COUNT, "repetitions": (*NO_COUNT, "0", "1001"),
    "size": (*NO_COUNT, "0", "1025"), "pooling": ("", "most", "cls+most", *NO_TEXT),
    "tokens": (*NO_COUNT, "1,,2", ","), "only": ("q9", ",", "nan", "i32", *NO_TEXT),
    "kv": ("", "f8", "F16 ", *NO_TEXT), "profile": ("", "best", *NO_TEXT),
    "implementation": ("", "webgpu", "WGPU", *NO_TEXT),
    "device": ("", "teapot", "-1", *NO_TEXT),
    "devices": ("", "teapot", "-1", "cpu,teapot", "cpu,cpu", *NO_TEXT),
    "n_gpu_layers": (*(value for value in NO_COUNT if value != "9" * 20), "some"),
    "tensor_split": (*NO_NUMBER, "1,,2", "0,0", "1,-1", "1,nan", "1,inf", ","),
    "main_gpu": (*NO_COUNT, "9"), "split_mode": ("", "row", "layers", *NO_TEXT),
    "cluster": ("", *NO_TEXT), "stages": (*NO_COUNT, "0", "3"),
    "type": ("", "q9", "f8", *NO_TEXT),
    "format": (*NO_FILE, "teapot", "text.txt", *NO_TEXT),
    "grammar": (*NO_FILE, "no.gbnf", "text.txt"),
    "num_parallel": (*NO_COUNT, "0", "33"),
    "draft": (*NO_FILE, "no.gguf", "no", *NO_TEXT), "draft_tokens": (*NO_COUNT, "0", "8", "3"),
    "chunks": ("0", *NO_COUNT), "threads": ("0", *NO_COUNT), "imatrix": NO_FILE,
    "lora": NO_FILE, "control_vector": NO_FILE, "lora_scaled": NO_FILE,
    "control_vector_scaled": NO_FILE, "control_vector_layer_range": NO_COUNT,
    "out": NO_FILE, "file": NO_FILE, "trace": NO_FILE, "html": NO_FILE,
    "import": (*NO_FILE, "no.py", "text.txt"),
    "model": (*NO_FILE, "no.gguf", "no", *NO_TEXT),
    **{p.name: (*NO_NUMBER, "1e30") for p in PARAMETERS.values() if p.kind != "texts"},
    "stop": ("",), "dry_sequence_breakers": ("",), "samplers": ("", "top_x", *NO_TEXT),
    "width": (*NO_COUNT, "0", "20000", "65"), "height": (*NO_COUNT, "0", "65"),
    "steps": (*NO_COUNT, "0", "10001"), "n": (*NO_COUNT, "0", "65"),
    "guidance": (*NO_NUMBER, "-1", "1e4"), "strength": (*NO_NUMBER, "0", "1.1", "0.5"),
    "pictures": (*NO_FILE, ".", "text.txt"),
    "host": ("", ",", "127.0.0.1,no such host", *NO_TEXT), "port": (*NO_COUNT, "65536"),
    "cors_origins": ("", ",", "http://", "a page", "http://a b", *NO_TEXT),
    "chat_template": ("", "no_such_name", "{{", "{% x %}", *NO_TEXT),
    "chat_template_file": (*NO_FILE, "no.jinja", "tiny.gguf"),
    "api_prefix": ("", "/", "llm", "//", "/a b", "/a?b", *NO_TEXT),
    "batch_size": (*NO_COUNT, "31", "257"), "cache_ram": NO_COUNT,
    "slot_save_path": (*(value for value in NO_FILE if value not in ("", ".")), "text.txt"),
    "reasoning_format": ("", "some", *NO_TEXT),
    "reasoning": ("", "maybe", *NO_TEXT), "api_key_file": (*NO_FILE, "text.txt", "tiny.gguf"),
    "keepalive": ("", "5m", "soon", *NO_TEXT),
    "language": ("", "xx", *NO_TEXT), "task": ("", "sing", *NO_TEXT),
    "mmproj": (*NO_FILE, "no.gguf"),
    "image": (*NO_FILE, "text.txt"), "audio": (*NO_FILE, "text.txt"),
    "mask": (*NO_FILE, "text.txt"),
    # A rate is for --video, which is not given.
    "video": (*NO_FILE, "text.txt"), "fps": (*NO_NUMBER, "0", "-1", "2"),
}  # fmt: skip
# A text may be anything, and a flag has no value.
ANYTHING = {"system", "prompt", "api_key", "negative", "alias", "tags"}
GIVEN = {
    "run": "{} hi --device cpu", "show": "{}", "tokenize": "{} hi",
    "embed": "{} hi --device cpu", "rerank": "{} hi ho --device cpu",
    "logits": "{} -o o.npy --device cpu", "quantize": "{} o.gguf Q8_0", "create": "o.gguf .",
    "perplexity": "{} text.txt --device cpu",
    "bench": "{} --device cpu", "profile": "{} --device cpu", "graph": "{} --device cpu",
    "devices": "", "tune": "", "op check": "ops.py", "op bench": "ops.py",
    "serve": "", "imagine": "circle --steps 2 --device cpu -o o.png",
    "transcribe": "{} a.wav --device cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("silly")
    tiny_model(folder / "tiny.gguf")
    for name in ("ops.py", "text.txt"):
        (folder / name).touch()
    return folder


Case = tuple[str, str, Sequence[str]]


def cases() -> list[Case]:
    """Every command, each of its options, and values: some, where another command had them all."""
    had: set[str] = set()
    found: list[Case] = []
    for command, option in options():
        values = WRONG.get(key(option), ())
        found.append((command, option, values[:3] if option in had else values))
        had.add(option)
    return found


def options() -> Iterator[tuple[str, str]]:
    """Every command with each of its options that takes a value."""
    for name, made in get_command(app).commands.items():
        for sub, command in getattr(made, "commands", {"": made}).items():
            for option in command.params:
                if option.param_type_name == "option" and not option.is_flag:
                    yield f"{name} {sub}".strip(), max(option.opts, key=len)


def key(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def test_every_command_and_option_has_silly_values() -> None:
    assert {command for command, _ in options()} <= GIVEN.keys()
    assert {key(option) for _, option in options()} - ANYTHING - WRONG.keys() == set()


@pytest.mark.parametrize(
    ("command", "option", "values"), cases(), ids=lambda part: part if isinstance(part, str) else ""
)
def test_silly_values_of_an_option(
    cli: Cli,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    option: str,
    values: Sequence[str],
) -> None:
    monkeypatch.chdir(folder)
    words = [*command.split(), *GIVEN[command].replace("{}", "tiny.gguf").split()]
    if option in ("--device", "--devices"):
        words = [word for word in words if word not in ("--device", "cpu")]
    if command == "logits" and option != "--tokens":
        words += ["--tokens", "1"]
    if command == "show" and option == "--devices":
        # Without it, a device of the environment changes nothing.
        words.append("--plan")
    for value in values:
        expect_one_line(cli, [*words, f"{option}={value}"])


@pytest.mark.parametrize("command", [c for c, given in GIVEN.items() if "{}" in given])
def test_silly_models(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(folder)
    for value in WRONG["model"] if command == "run" else NO_FILE:
        [_, *rest] = GIVEN[command].split()
        words = [*rest, *(["--tokens", "1"] if command == "logits" else []), "--", value]
        if command not in ("show", "logits", "bench", "profile", "graph"):
            # Texts come behind the model.
            words.sort(key=("hi", "ho", "text.txt", "o.gguf", "Q8_0", "a.wav").__contains__)
        expect_one_line(cli, [command, *words])


def expect_one_line(cli: Cli, words: list[str]) -> None:
    done = cli(*words)
    assert (done.code, done.out) == (USAGE, ""), words
    assert len(done.err.splitlines()) == 1, words
    assert len(done.err) < 500, words
    assert "internal error" not in done.err, words


def test_numpy_is_refused_where_a_gpu_is_needed(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for command in ("tune", "op check ops.py", "op bench ops.py"):
        done = cli(*command.split(), "--device", "cpu")
        assert (done.code, done.err) == (
            USAGE, "wgpu-backend: --device: 'cpu' is NumPy, needs a GPU or a software rasteriser\n",
        )  # fmt: skip
