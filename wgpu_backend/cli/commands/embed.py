"""`wgpu-backend embed` and `rerank`: vectors of texts and pictures, and scores of texts."""

from __future__ import annotations

import json
from itertools import chain
from typing import Annotated

import typer

from wgpu_backend.cli.console import print_text
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import find_model
from wgpu_backend.cli.options import Images, Model, ModelSettings, with_model_options


@with_model_options
def embed(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...")] = None,
    *,
    image: Images = None,
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
    """Print embeddings of texts and pictures, a JSON list each."""
    from wgpu_backend.cli.loading import open_model

    if not texts and not image:
        raise UsageError("embed: needs a TEXT, or --image with a model such as CLIP")

    with open_model(find_model(model), settings) as opened:
        # One text at a time, so that the first line does not wait for the last text.
        rows = (opened.embed([text], pooling=pooling) for text in texts or ())
        for [row] in chain(rows, (opened.embed(images=[path]) for path in image or ())):
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
