"""`wgpu-backend tokenize`: the tokens of a text."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wgpu_backend.cli.console import answer, print_table
from wgpu_backend.cli.names import model_path
from wgpu_backend.cli.options import (
    Debug,
    Imports,
    Model,
)


def print_tokens(name: str, text: str, *, ids_only: bool, special: bool) -> None:
    """Print the tokens of a text.

    Parameters
    ----------
    name : str
        Model.
    ids_only : bool
        Print a JSON list of ids instead of a table.
    special : bool
        Convert spellings of control tokens to those tokens.
    """
    from wgpu_backend.files.huggingface.folder import open_model_file
    from wgpu_backend.text.tokenizer import Tokenizer

    with open_model_file(model_path(name)) as file:
        tokenizer = Tokenizer.of_file(file)
    ids = tokenizer.encode(text, add_special=True, parse_special=special)
    if ids_only:
        answer(json.dumps(ids) + "\n")
        return
    rows = [(str(i), tokenizer.token_text(i), _readable(tokenizer.token_bytes(i))) for i in ids]
    print_table(("id", "token", "text"), rows, right=("id",))


def _readable(data: bytes) -> str:
    """Return the text of a token in quotes, or its bytes if they are not whole characters."""
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)


def tokenize(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    ids: Annotated[bool, typer.Option("--ids", help="Only the ids, as a JSON list.")] = False,
    special: Annotated[
        bool, typer.Option("--special", help="Control tokens in the text are those tokens.")
    ] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Show text as the model sees it."""
    print_tokens(model, text, ids_only=ids, special=special)
