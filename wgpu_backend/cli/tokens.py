"""`wgpu-backend tokenize`: text as a model sees it."""

from __future__ import annotations

import json

from wgpu_backend.cli.console import answer, print_table
from wgpu_backend.cli.names import model_path
from wgpu_backend.files.huggingface.opening import open_model_file
from wgpu_backend.text.tokenizer import Tokenizer


def print_tokens(name: str, text: str, *, ids_only: bool, special: bool) -> None:
    """Write the tokens of a text.

    Parameters
    ----------
    name : str
        Model.
    text : str
    ids_only : bool
        A JSON list of ids instead of a table.
    special : bool
        Control tokens spelled out in the text become those tokens.
    """
    with open_model_file(model_path(name)) as file:
        tokenizer = Tokenizer.of_file(file)
    ids = tokenizer.encode(text, add_special=True, parse_special=special)
    if ids_only:
        answer(json.dumps(ids) + "\n")
        return
    rows = [(str(i), tokenizer.token_text(i), _readable(tokenizer.token_bytes(i))) for i in ids]
    print_table(("id", "token", "text"), rows, right=("id",))


def _readable(data: bytes) -> str:
    """Text of a token in quotes, or its bytes where they are no whole characters."""
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)
