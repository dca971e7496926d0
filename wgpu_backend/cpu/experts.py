"""NumPy twins of `wgpu_backend.ops.experts`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.activation import sigmoid
from wgpu_backend.cpu.twin import Array, twin


@twin
def mulmat_id(weights: Array, x: Array, ids: Array) -> Array:
    """Product of each row with the expert chosen for it, expert by expert."""
    tokens, used = ids.shape
    rows = np.broadcast_to(x, (tokens, used, x.shape[-1]))
    y = np.zeros((tokens, used, weights.shape[1]), np.float32)
    for expert in np.unique(ids):
        chosen = ids == expert
        y[chosen] = rows[chosen] @ weights[expert].T
    return y


@twin
def add_id(x: Array, bias: Array, ids: Array) -> Array:
    """Row plus the bias of its expert; ids outside add nothing."""
    inside = (ids >= 0) & (ids < len(bias))
    return x + np.where(inside[..., None], bias[np.where(inside, ids, 0)], np.float32(0))


@twin
def silu_alpha_limit(x: Array, up: Array, alpha: float, limit: float) -> Array:
    """Gated activation of gpt-oss."""
    kind = x.dtype.type
    gate = np.minimum(x, kind(limit))
    return gate * sigmoid(kind(alpha) * gate) * (np.clip(up, kind(-limit), kind(limit)) + kind(1))
