"""Help texts: one style in every command."""

import re
from collections.abc import Iterator
from pathlib import Path

import typer

from tests.cli.conftest import Cli
from wgpu_backend.cli.app import app


def help_texts(command: object, path: str) -> Iterator[tuple[str, str]]:
    """Help of a command, its parameters and the commands below it, by where it stands."""
    yield path, str(getattr(command, "help", None) or "")
    for parameter in getattr(command, "params", ()):
        text = getattr(parameter, "help", None)
        if text and parameter.name not in ("install_completion", "show_completion"):
            yield f"{path} {parameter.name}", text
    for name, below in getattr(command, "commands", {}).items():
        yield from help_texts(below, f"{path} {name}")


TEXTS = dict(help_texts(typer.main.get_command(app), "wgpu-backend"))


def test_help_is_in_sentence_case_with_a_full_stop() -> None:
    assert len(TEXTS) > 60
    # A parameter's range may stand behind its sentence.
    sentence = re.compile(r"[A-Z0-9`].*\.( \[.*\])?", re.DOTALL)
    assert [path for path, text in TEXTS.items() if not sentence.fullmatch(text.strip())] == []


def test_help_keeps_more_than_half_of_80_columns_for_text(cli: Cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("run", "--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    [line] = [line for line in lines if line.lstrip().startswith("--temperature")]
    assert line.index("Sampling temperature") <= 36


def test_no_command_s_summary_is_cut(cli: Cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in ((), ("op",)):
        assert "..." not in cli(*words, "--help").out.partition("Commands:")[2]


INVENTED = (
    *("heads of keys", "bits a weight", "context here", "of roof", "Say what it took"),
    "the conversation is forgotten",
)


def test_messages_use_the_field_s_terms() -> None:
    root = Path(__file__).parent.parent.parent
    sources = [*(root / "wgpu_backend").rglob("*.py"), *(root / "models").glob("*.py")]
    found = {
        (path.name, words)
        for path in [*sources, *root.glob("*.md")]
        for words in INVENTED
        if words in path.read_text("utf-8") and path.name != "CHANGELOG.md"
    }
    assert found == set()
