"""`wgpu-backend logits`: the logits of each token."""

from __future__ import annotations

from typing import Annotated

import typer

from wgpu_backend.cli.console import note
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import find_model, require_writable, save
from wgpu_backend.cli.options import (
    Images,
    Model,
    ModelSettings,
    OutFile,
    Sounds,
    with_model_options,
)


@with_model_options
def logits(
    model: Model,
    out: OutFile,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="IDS", help="Token ids: 1,2,3.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="Text, used without a chat template."),
    ] = None,
    image: Images = None,
    audio: Sounds = None,
    *,
    settings: ModelSettings,
) -> None:
    """Save the logits of each position as a .npy file.

    The array is float32 of shape (tokens, vocabulary). Pictures and sounds stand in --prompt where
    it has `<__media__>` or the model's own token for them, or come first; each row of one is a
    position.
    """
    import numpy as np

    from wgpu_backend.cli.loading import open_model

    if (tokens is None) == (prompt is None):
        raise UsageError("logits: needs either --tokens or --prompt")
    if (image or audio) and prompt is None:
        name = "--image" if image else "--audio"
        raise UsageError(f"logits: {name} needs --prompt, which marks the places of files")
    ids = _parse_tokens(tokens) if tokens is not None else []
    path, out = find_model(model), require_writable(out)
    with open_model(path, settings) as opened:
        if prompt is not None and not (image or audio):
            ids = opened.tokenizer.encode(prompt)
        too_large = [i for i in ids if i >= opened.vocabulary]
        if too_large:
            raise UsageError(
                f"--tokens: {too_large[0]}, the vocabulary of {model} has {opened.vocabulary}"
            )
        given = prompt if (image or audio) and prompt else ids
        scores = opened.logits(given, images=image or (), audio=audio or ())
    save(out, lambda file: np.save(file, scores))
    note(f"{out}: float32, {scores.shape[0]} tokens × {scores.shape[1]} scores")


def _parse_tokens(text: str) -> list[int]:
    """Parse token ids such as ``1,2,3``.

    Raises
    ------
    UsageError
        A word is not a token id.
    """
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isascii() and word.isdecimal())]
    if wrong:
        raise UsageError(f"--tokens: {wrong[0]!r} is not a token id, needs numbers like 1,2,3")
    return [int(word) for word in words]
