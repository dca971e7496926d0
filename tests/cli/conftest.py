"""The command line, run in this process."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

from tests.builders import tiny_model
from wgpu_backend.cli import main
from wgpu_backend.device.adapters import Devices


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


COLUMNS = "100"
Cli = Callable[..., Done]


@pytest.fixture(scope="session", autouse=True)
def parser() -> Iterator[None]:
    """Make the parser once for all commands of this process, which takes longer than most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command with some text on its stdin, on a terminal of `COLUMNS` columns."""
    monkeypatch.delenv("WGPU_BACKEND_DEVICE", raising=False)

    def run(*words: str, stdin: str = "") -> Done:
        monkeypatch.setenv("COLUMNS", COLUMNS)
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = main(words)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an untied head, random weights."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def adapter() -> str:
    """Id of the best GPU, or of a software rasteriser."""
    best = Devices()[0]
    if best.kind == "cpu":
        pytest.skip("needs an adapter")
    return best.id
