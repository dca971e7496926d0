"""`wgpu-backend embed` and `rerank`: embeddings of texts, and their scores for a query."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wgpu_backend.cli.console import print_text
from wgpu_backend.cli.names import find_model
from wgpu_backend.cli.options import Model, ModelSettings, with_model_options


@with_model_options
def embed(
    model: Model,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...")],
    *,
    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Pooling: mean, cls, last, max, weightedmean, mean_sqrt_len, or several joined "
            "by +. Default: the file's.",
        ),
    ] = None,
    settings: ModelSettings,
) -> None:
    """Print the embedding of each text as a JSON list, one per line."""
    from wgpu_backend.cli.loading import open_model

    with open_model(find_model(model), settings) as opened:
        # One text at a time, so that the first line does not wait for the last text.
        for text in texts:
            [row] = opened.embed([text], pooling=pooling)
            print_text(json.dumps([float(value) for value in row]) + "\n")


@with_model_options
def rerank(
    model: Model,
    query: Annotated[str, typer.Argument()],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...")],
    *,
    settings: ModelSettings,
) -> None:
    """Print the relevance of each text to a query, a line each."""
    from wgpu_backend.cli.loading import open_model

    with open_model(find_model(model), settings) as opened:
        for text in texts:
            [score] = opened.rerank(query, [text])
            print_text(f"{score:.6g}\n")
