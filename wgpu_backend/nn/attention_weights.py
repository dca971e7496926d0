"""Attention weights for display; the attention kernels never store them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import ModelError
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Attended

# A score whose weight is 0; infinities would give NaN in arithmetic.
_HIDDEN = -1e30


def attention_weights(attended: Attended, count: int) -> Tensor:
    """Compute the weights of one text at position 0: ``softmax(scale * q @ k.T + mask)``.

    Parameters
    ----------
    count : int
        Tokens of the text; rows after them are padding.

    Returns
    -------
    (tokens, heads, tokens), f32
        Weight of each other token (last axis) for each token.

    Raises
    ------
    ModelError
        The layer has no keys of its own, or its scores have further terms.
    """
    q, k = attended.q, attended.k
    if k is None or attended.besides:
        what = attended.besides or "the keys of another layer"
        raise ModelError(f"attention: a layer with {what} has no attention weights to show")
    scores = k.permute(1, 0, 2).contiguous().mulmat_full_prec(q.permute(1, 0, 2).contiguous())
    scores = scores.scale(factor=attended.scale)
    # Before the mask: a cap after it would raise hidden scores to -cap.
    if cap := attended.softcap:
        scores = scores.scale(factor=1 / cap).tanh().scale(factor=cap)
    tokens = q.shape[0]
    mask = np.where(_make_mask(attended, tokens, count), 0, _HIDDEN).astype(np.float32)
    weights = _softmax(scores.add(q.context.from_numpy(mask)), attended.sinks)
    return weights.permute(1, 0, 2).contiguous()


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax()
    heads, tokens, keys = scores.shape
    none = scores.context.from_numpy(np.zeros((heads, tokens, 1), np.float32))
    column = none.add(sinks.reshape(heads, 1, 1))
    # A sink adds to the sum of the softmax but has no value, so its own weight is dropped.
    return scores.concat(column, axis=2).softmax().slice(2, 0, keys)


def _make_mask(attended: Attended, tokens: int, count: int) -> NDArray[np.bool_]:
    """Return which tokens each token (row) attends to; padding attends to the first."""
    row, column = np.indices((tokens, tokens))
    seen = (column <= row) if attended.causal else (column < count)
    seen = seen & (column < count)
    if attended.window:
        seen &= row - column < attended.window
    if attended.chunk:
        seen &= row // attended.chunk == column // attended.chunk
    if attended.symmetric_window:
        seen &= np.abs(row - column) <= attended.symmetric_window // 2
    # With every key hidden, the softmax of a padding row would weigh all keys alike.
    seen[count:, 0] = True
    return seen
