"""The perplexity of a text under a model, as llama.cpp defines it.

The text is cut into chunks of `n_ctx` tokens, each read from an empty context. If the vocabulary
adds BOS, it replaces a chunk's first token. Tokens of the second half are scored, so each has at
least half a chunk before it::

    chunk   │ bos  t1 … t(n/2) │ t(n/2 + 1) … t(n - 1) │
              read               read and scored
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.errors import ContextFull, OptionError

# The default of llama.cpp's `llama-perplexity`; figures of other chunks do not compare.
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The perplexity after some chunks.

    Parameters
    ----------
    chunks, total : int
        Chunks that were read, and all chunks.
    tokens : int
        Number of scored tokens.
    value : float
        e to the mean negative log likelihood, in nats.
    error : float
        Standard error of `value`; NaN for one token.
    """

    chunks: int
    total: int
    tokens: int
    value: float
    error: float


def perplexities(
    model: LanguageModel, text: str, *, n_ctx: int = CHUNK, chunks: int | None = None
) -> Iterator[Perplexity]:
    """Yield the perplexity after each chunk of a text; the last result covers all.

    Parameters
    ----------
    model : LanguageModel
        The model, whose context must hold a chunk.
    text : str
        A text of at least two chunks.
    n_ctx : int
        Tokens of a chunk, at least 4.
    chunks : int or None
        Chunks to read; None for all. An incomplete last chunk is ignored.

    Yields
    ------
    Perplexity
        The result over all chunks so far.

    Raises
    ------
    OptionError
        `n_ctx` or `chunks` is out of range, or the text is too short.
    ContextFull
        A chunk is longer than the context.
    """
    tokens = model.tokenizer.encode(text)
    _check(model, len(tokens), n_ctx, chunks)
    total = min(len(tokens) // n_ctx, chunks or len(tokens))
    scores: list[NDArray[np.float64]] = []
    for index in range(total):
        chunk = tokens[index * n_ctx : (index + 1) * n_ctx]
        scores.append(_score(model, chunk))
        yield _sum_up(index + 1, total, np.concatenate(scores))


def _check(model: LanguageModel, count: int, n_ctx: int, chunks: int | None) -> None:
    if n_ctx < 4:
        raise OptionError(f"n_ctx: {n_ctx}, needs at least 4")
    if chunks is not None and chunks < 1:
        raise OptionError(f"chunks: {chunks}, needs at least 1")
    if n_ctx > model.num_ctx:
        raise ContextFull(f"n_ctx: {n_ctx} tokens a chunk, the context holds {model.num_ctx}")
    # The same least length as in llama.cpp.
    if count < 2 * n_ctx:
        raise OptionError(
            f"the text has {count} tokens, two chunks of {n_ctx} need {2 * n_ctx}; "
            "take a longer text or a smaller n_ctx"
        )


def _score(model: LanguageModel, chunk: Sequence[int]) -> NDArray[np.float64]:
    """Compute the negative log likelihoods of the second half's tokens."""
    first, begin = len(chunk) // 2, model.tokenizer.bos_id
    replaced = model.tokenizer.add_bos and begin is not None
    # The last token's logits would score a token of the next chunk, so it is left out.
    read = [begin if replaced and begin is not None else chunk[0], *chunk[1:-1]]
    logits = model.logits(read)[first:]
    # Subtracted from each logit, so that no `exp` overflows.
    top = logits.max(axis=1, keepdims=True)
    sums = np.exp(logits - top).sum(axis=1, dtype=np.float64)
    own = logits[np.arange(len(logits)), list(chunk[first + 1 :])]
    return np.log(sums) - (own.astype(np.float64) - top[:, 0])


def _sum_up(chunks: int, total: int, scores: NDArray[np.float64]) -> Perplexity:
    mean = float(scores.mean())
    # `math.exp` raises OverflowError above 709.
    value = math.exp(mean) if mean < 700 else math.inf
    # `std` divides by n; the root of n - 1 here makes the variance of the mean unbiased.
    spread = float(scores.std()) / math.sqrt(scores.size - 1) if scores.size > 1 else math.nan
    # To first order, the error of e^mean is e^mean times the error of the mean.
    return Perplexity(chunks, total, scores.size, value, value * spread)
