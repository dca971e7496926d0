"""NumPy twins of `wgpu_backend.ops.attention.scaled`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.attention import in_first_split
from wgpu_backend.cpu.twin import Array, twin


@twin
def scaled_attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    sinks: Array | None = None,
    *,
    scale: float,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    splits: int = 1,
) -> Array:
    """Attention with all scores at once."""
    heads, repeats = q.shape[2], q.shape[2] // k.shape[2]
    keys, values = np.repeat(k, repeats, axis=2), np.repeat(v, repeats, axis=2)
    scores = np.einsum("bthd,bshd->bhts", q * np.float32(scale), keys)
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    seen = np.broadcast_to(_seen(q.shape[1], k.shape[1], causal, window), scores.shape)
    if mask is not None and mask.dtype == np.bool_:
        seen = seen & mask
    elif mask is not None:
        seen, scores = seen & ~np.isneginf(mask), scores + mask
    scores = np.where(seen, scores, np.float32(-np.inf))
    sink = np.full(heads, -np.inf, np.float32) if sinks is None else sinks
    sink = sink[:, None, None]
    largest = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    largest = np.where(np.isneginf(largest), np.float32(0), largest)
    e = np.exp(scores - largest)
    total = e.sum(axis=-1, keepdims=True) + np.exp(sink - largest)
    e = np.divide(e, total, out=np.zeros_like(e), where=total != 0)
    y = np.einsum("bhts,bshd->bthd", e, values)
    rows = (y.shape[0] * y.shape[1], *y.shape[2:])
    return y if splits == 1 else in_first_split(y.reshape(rows), splits)


def _seen(tokens: int, keys: int, causal: bool, window: int) -> Array:
    own = np.arange(tokens)[:, None] + keys - tokens
    key = np.arange(keys)
    seen = np.ones((tokens, keys), np.bool_)
    if causal:
        seen &= key <= own
    if window:
        seen &= key > own - window
    return seen
