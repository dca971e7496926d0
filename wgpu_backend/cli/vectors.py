"""`wgpu-backend logits`, `embed` and `rerank`: numeric outputs of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.console import answer, note
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import model_path, save, writable
from wgpu_backend.cli.options import (
    Model,
    OutFile,
    Settings,
    opens_a_model,
)


def token_list(text: str) -> list[int]:
    """Parse token ids such as ``1,2,3``.

    Raises
    ------
    UsageError
        A word is not a token id.
    """
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isascii() and word.isdecimal())]
    if wrong:
        raise UsageError(f"--tokens: {wrong[0]!r} is no token id, needs numbers like 1,2,3")
    return [int(word) for word in words]


def write_logits(
    name: str, tokens: str | None, prompt: str | None, out: Path, settings: Settings
) -> None:
    """Save the logits after each token, (tokens, vocabulary) in float32, as a .npy file.

    Raises
    ------
    UsageError
        Not exactly one of `tokens` and `prompt` is given, or a token is not in the vocabulary.
    """
    import numpy as np

    from wgpu_backend.cli.loading import open_model

    if (tokens is None) == (prompt is None):
        raise UsageError("logits: needs either --tokens or --prompt")
    ids = token_list(tokens) if tokens is not None else []
    path, out = model_path(name), writable(out)
    with open_model(path, settings) as model:
        if prompt is not None:
            ids = model.tokenizer.encode(prompt)
        too_large = [i for i in ids if i >= model.vocabulary]
        if too_large:
            raise UsageError(
                f"--tokens: {too_large[0]}, the vocabulary of {name} has {model.vocabulary}"
            )
        logits = model.logits(ids)
    save(out, lambda file: np.save(file, logits))
    note(f"{out}: float32, {logits.shape[0]} tokens × {logits.shape[1]} scores")


def print_embeddings(name: str, texts: list[str], pooling: str | None, settings: Settings) -> None:
    """Print the embedding of each text as a JSON list, a line each."""
    from wgpu_backend.cli.loading import open_model

    with open_model(model_path(name), settings) as model:
        for text in texts:
            [row] = model.embed([text], pooling=pooling)
            answer(json.dumps([float(value) for value in row]) + "\n")


def print_scores(name: str, query: str, texts: list[str], settings: Settings) -> None:
    """Print the score of each text for the query, a line each."""
    from wgpu_backend.cli.loading import open_model

    with open_model(model_path(name), settings) as model:
        for text in texts:
            [score] = model.rerank(query, [text])
            answer(f"{score:.6g}\n")


@opens_a_model
def logits(
    model: Model,
    out: OutFile,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="IDS", help="Token ids: 1,2,3.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Text, not templated.")
    ] = None,
    *,
    settings: Settings,
) -> None:
    """Save the logits of each position as a .npy file.

    The array is float32 of shape (tokens, vocabulary).
    """
    write_logits(model, tokens, prompt, out, settings)


@opens_a_model
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
    settings: Settings,
) -> None:
    """Embed each text: one JSON list a line."""
    print_embeddings(model, texts, pooling, settings)


@opens_a_model
def rerank(
    model: Model,
    query: Annotated[str, typer.Argument()],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...")],
    *,
    settings: Settings,
) -> None:
    """Score how well each text answers a query, one number a line."""
    print_scores(model, query, texts, settings)
