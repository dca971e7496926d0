"""`wgpu-backend perplexity`: the perplexity of a text under a model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.console import print_text
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import find_model, require_file
from wgpu_backend.cli.options import Json, Model, ModelSettings, with_model_options
from wgpu_backend.cli.progress import bar


@with_model_options
def perplexity(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Text in UTF-8.")],
    chunks: Annotated[
        int | None,
        typer.Option(
            "--chunks", metavar="N", min=1, help="Number of chunks to read; default: all."
        ),
    ] = None,
    as_json: Json = False,
    *,
    settings: ModelSettings,
) -> None:
    """Measure the perplexity of a text in chunks of --num-ctx."""
    from wgpu_backend.cli.loading import open_model
    from wgpu_backend.engine.perplexity import CHUNK, perplexities

    path, text = find_model(model), _read_text(file)
    n_ctx = settings.num_ctx or CHUNK
    opened, last = open_model(path, replace(settings, num_ctx=n_ctx)), None
    with opened, bar(f"Reading {file.name}") as progress:
        for last in perplexities(opened, text, n_ctx=n_ctx, chunks=chunks):
            if progress is not None:
                progress(last.chunks / last.total)
    # `perplexities` raises for a text that is too short, so there is a last value.
    assert last is not None
    if as_json:
        facts = {"model": str(path), "file": str(file), "n_ctx": n_ctx} | asdict(last)
        print_text(json.dumps(facts) + "\n")
        return
    # As llama-perplexity ends, so that scripts can compare the two.
    print_text(f"PPL = {last.value:.4f} +/- {last.error:.5f}\n")


def _read_text(file: Path) -> str:
    try:
        return require_file(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file, needs a text") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 at byte {error.start}, needs a text") from None
