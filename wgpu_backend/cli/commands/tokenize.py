"""`wgpu-backend tokenize`: the tokens of a text."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wgpu_backend.cli.console import print_table, print_text
from wgpu_backend.cli.names import find_model
from wgpu_backend.cli.options import Debug, Imports, Model


def tokenize(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    ids: Annotated[bool, typer.Option("--ids", help="Print only the ids, as a JSON list.")] = False,
    special: Annotated[
        bool, typer.Option("--special", help="Parse control tokens in the text.")
    ] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Show the tokens of a text."""
    from wgpu_backend.files.huggingface.folder import open_model_file
    from wgpu_backend.text.tokenizer import Tokenizer

    with open_model_file(find_model(model)) as file:
        tokenizer = Tokenizer.of_file(file)
    found = tokenizer.encode(text, add_special=True, parse_special=special)
    if ids:
        print_text(json.dumps(found) + "\n")
        return
    rows = [(str(i), tokenizer.token_text(i), _quote(tokenizer.token_bytes(i))) for i in found]
    print_table(("id", "token", "text"), rows, right=("id",))


def _quote(data: bytes) -> str:
    """Return the text of a token in quotes, or its bytes if they are not whole characters."""
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)
