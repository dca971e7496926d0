"""README and its two pages of tables: the commands run, tables and Python are up to date."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import readme_tables
from tests.builders import tiny_model
from tests.engine.speech import tiny as whisper
from tests.files.huggingface.folders import write_folder
from tests.models.outlines import a_reranker

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README + COMMANDS, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return list(
        dict.fromkeys(line for line in lines if re.match(r"(echo .*\| )?wgpu-backend ", line))
    )


def usages() -> list[str]:
    """The usage lines of the table of commands."""
    return re.findall(r"^\| `wgpu-backend (.*?)` \|", COMMANDS, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    tiny_model(folder / "model.gguf")
    a_reranker(folder / "reranker.gguf")
    (folder / "text.txt").write_text("the other hand in the end " * 30, encoding="utf-8")
    write_folder(folder / "model-folder")
    whisper.make_folder(folder / "whisper-folder")
    whisper.write_sound(folder / "talk.wav")
    return folder


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # A home of its own, with its caches, where `tune` may leave what it found.
    return subprocess.run(
        words,
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "XDG_CACHE_HOME": "",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("sh"), reason="needs a POSIX shell")
@pytest.mark.parametrize("command", commands())
def test_a_command_of_readme_runs(command: str, folder: Path) -> None:
    done = run(["sh", "-c", command], folder)
    assert done.returncode == 0, done.stderr
    wrote = re.search(r"-o (\S+)", command)
    assert (folder / wrote[1]).stat().st_size if wrote else done.stdout.strip()


def test_every_command_is_shown_in_the_table_and_by_example() -> None:
    from wgpu_backend.cli.app import app

    shown = [c for c in app.registered_commands if not c.hidden]
    names = {c.name or (c.callback.__name__ if c.callback else "") for c in shown}
    assert {usage.split()[0] for usage in usages()} == names
    # Those of `console` blocks need a registry, a server or a store; tests/cli runs them.
    examples = [*commands(), *re.findall(r"^\$ .*", "".join(blocks("console")), re.MULTILINE)]
    assert {re.findall(r"wgpu-backend (\w+)", example)[0] for example in examples} == names


@pytest.mark.parametrize("usage", usages())
def test_options_in_the_table_exist(usage: str, folder: Path) -> None:
    name = usage.split()[0]
    shown = run([sys.executable, "-m", "wgpu_backend", name, "--help"], folder).stdout
    options = re.findall(r"(?<![\w-])--?\w[\w-]*", usage)
    assert [option for option in options if not re.search(rf"{option}\b", shown)] == []


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"))
def test_the_python_of_readme_runs(code: str, folder: Path) -> None:
    done = run([sys.executable, "-W", "error", "-c", code], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_targets_of_make_that_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks("sh")), re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z-]+)", README))
    assert named - set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) == set()
    assert named


def test_the_tables_of_models_are_those_of_the_registries() -> None:
    assert readme_tables.update(MODELS) == MODELS, "run python -m tests.readme_tables"
    assert "| weights | F32, " in MODELS


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 180
