"""`wgpu-backend perplexity`: the perplexity of a text under a model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.console import answer
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import model_path, regular
from wgpu_backend.cli.options import (
    Json,
    Model,
    Settings,
    opens_a_model,
)
from wgpu_backend.cli.progress import bar


def print_perplexity(
    name: str, file: Path, chunks: int | None, settings: Settings, *, as_json: bool
) -> None:
    """Print the perplexity of a text file and its standard error.

    Raises
    ------
    UsageError
        The file does not exist, or is not UTF-8.
    """
    from wgpu_backend.cli.loading import open_model
    from wgpu_backend.engine.perplexity import CHUNK, perplexities

    path, text = model_path(name), _text(file)
    n_ctx = settings.num_ctx or CHUNK
    model, last = open_model(path, replace(settings, num_ctx=n_ctx)), None
    with model, bar(f"Reading {file.name}") as progress:
        for last in perplexities(model, text, n_ctx=n_ctx, chunks=chunks):
            if progress is not None:
                progress(last.chunks / last.total)
    assert last is not None
    if as_json:
        answer(json.dumps({"model": str(path), "file": str(file), "n_ctx": n_ctx} | asdict(last)))
        answer("\n")
        return
    answer(f"PPL = {last.value:.4f} +/- {last.error:.5f}\n")


def _text(file: Path) -> str:
    try:
        return regular(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file, needs a text") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: no UTF-8 at byte {error.start}, needs a text") from None


@opens_a_model
def perplexity(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Text in UTF-8.")],
    chunks: Annotated[
        int | None,
        typer.Option("--chunks", metavar="N", min=1, help="Read so many chunks of the text."),
    ] = None,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Measure the perplexity of a text in chunks of --num-ctx."""
    print_perplexity(model, file, chunks, settings, as_json=as_json)
