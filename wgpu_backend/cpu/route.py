"""NumPy twin of `wgpu_backend.ops.moe.route`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.activation import sigmoid
from wgpu_backend.cpu.normalization import softmax
from wgpu_backend.cpu.sorting import sort_rows
from wgpu_backend.cpu.twin import Array, twin


@twin
def route(
    x: Array,
    ids: Array,
    bias: Array | None = None,
    *,
    scores: str = "",
    weights: str = "",
    factor: float = 1.0,
) -> Array:
    """Scores, the columns of the largest of each row, and what weights they get."""
    logits = x.reshape(-1, x.shape[-1])
    given = {"softmax": softmax, "sigmoid": sigmoid}.get(scores, np.asarray)(logits)
    ranked = given if bias is None else given + bias
    best = sort_rows(ranked.astype(np.float32), descending=True)[:, : ids.size // len(given)]
    ids[...] = best.reshape(ids.shape)
    found = np.take_along_axis(given, best, axis=1)
    if weights == "sum":
        found = found / np.sum(found, axis=1, keepdims=True)
    if weights == "softmax":
        found = softmax(found)
    return (found * np.float32(factor)).reshape(ids.shape)
