"""Formats of answers: `--format` and `--grammar` of `run`."""

from __future__ import annotations

from pathlib import Path

from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import require_file
from wgpu_backend.text.grammar import Grammar
from wgpu_backend.text.grammar.grammar import MOST_BYTES

LARK = ".lark"


def make_grammar(form: str | None, file: Path | None) -> Grammar | None:
    """Make the grammar of ``--format`` or ``--grammar``.

    Parameters
    ----------
    form : str or None
        ``json``, a JSON schema, or the name of a file with one.
    file : Path or None
        Grammar in GBNF, or in Lark if its name ends in ``.lark``.

    Raises
    ------
    UsageError
        Both are given, or a file does not exist.
    GrammarError
        The schema is invalid.
    """
    if form is not None and file is not None:
        raise UsageError("run: --format and --grammar, needs one of the two")
    if form is not None:
        if form == "json" or form.lstrip().startswith("{"):
            return Grammar.of_format(form)
        return Grammar.json_schema(_text("--format", Path(form)))
    if file is None:
        return None
    text = _text("--grammar", file)
    return Grammar.lark(text) if file.suffix == LARK else Grammar.gbnf(text)


def _text(option: str, path: Path) -> str:
    try:
        with require_file(path).open("rb") as file:
            return file.read(MOST_BYTES + 1).decode()
    except FileNotFoundError:
        raise UsageError(f"{option}: {path}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option}: {path}: not UTF-8") from None
