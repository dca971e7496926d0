"""Log probabilities of tokens from logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.batching.results import TokenLogprob
from wgpu_backend.ops.sampling.host import largest
from wgpu_backend.ops.sampling.host.candidates import Candidates
from wgpu_backend.text.tokenizer import Tokenizer


def token_logprob(
    logits: NDArray[np.float32],
    token: int,
    count: int,
    tokenizer: Tokenizer,
    chances: Candidates | None = None,
) -> TokenLogprob:
    """Compute the log probabilities of a token and of the most likely tokens, as a softmax.

    Parameters
    ----------
    logits : (vocabulary,), f32
    count : int
        Number of most likely tokens to return; ties are ordered by id.
    chances : Candidates or None
        Candidates after all sampling options, to use their probabilities; other tokens have
        minus infinity. None for those of the model.
    """
    if chances is None:
        values = logits.astype(np.float64)
        values -= values.max()
        values -= np.log(np.exp(values).sum())
        top = largest(logits, count).ids if count else ()
    else:
        values = np.full(len(logits), -np.inf)
        values[chances.ids] = chances.logits
        top = chances.first(count).ids

    def one(id_: int, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        piece = tokenizer.token_bytes(id_) if id_ < tokenizer.vocab_size else b""
        return TokenLogprob(id_, float(values[id_]), piece, top)

    return one(token, tuple(one(int(id_)) for id_ in top))
