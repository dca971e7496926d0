"""NumPy twins of `wgpu_backend.ops.moe.route` and `sparse_mixer`."""

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
    scales: Array | None = None,
    *,
    scores: str = "",
    weights: str = "",
    inner: float = 1.0,
    factor: float = 1.0,
    groups: int = 1,
    groups_used: int = 1,
) -> Array:
    """Scores, the columns of the largest of each row, and what weights they get."""
    logits = x.reshape(-1, x.shape[-1]) * np.float32(inner)
    given = {"softmax": softmax, "sigmoid": sigmoid}.get(scores, np.asarray)(logits)
    ranked = given if bias is None else given + bias
    ranked = of_best_groups(ranked, groups=groups, used=groups_used)
    best = sort_rows(ranked.astype(np.float32), descending=True)[:, : ids.size // len(given)]
    ids[...] = best.reshape(ids.shape)
    found = np.take_along_axis(given, best, axis=1)
    if weights == "sum":
        found = found / np.sum(found, axis=1, keepdims=True)
    if weights == "softmax":
        found = softmax(found)
    if scales is not None:
        found = found * scales.reshape(-1)[best]
    return (found * np.float32(factor)).reshape(ids.shape)


@twin
def of_best_groups(x: Array, *, groups: int, used: int) -> Array:
    """Scores, negative infinity for those of groups that are not among the best."""
    each = x.shape[1] // groups
    grouped = x.reshape(-1, each).astype(np.float32)
    two = sort_rows(grouped, descending=True)[:, :2]
    with np.errstate(invalid="ignore"):  # of infinities
        sums = np.take_along_axis(grouped, two, axis=1).sum(axis=1, dtype=np.float32)
    best = sort_rows(sums.reshape(-1, groups), descending=True)[:, :used]
    shut = np.ones((len(x), groups, 1), np.bool)
    np.put_along_axis(shut[..., 0], best, np.bool(False), axis=1)
    kept = np.where(shut, np.float32(-np.inf), grouped.reshape(-1, groups, each))
    return kept.reshape(x.shape)


@twin
def sparse_mixer(x: Array, ids: Array, *, margin: float) -> Array:
    """Inverse of a sum of exponentials over what is nearly as good, and no better."""
    scores = x.astype(np.float32)[:, None]
    best = np.take_along_axis(scores[:, 0], ids, axis=1)[..., None]
    below = best - scores
    counts = (below >= 0) & (below <= np.float32(margin) * np.maximum(np.abs(scores), best))
    return 1 / np.where(counts, np.exp(-np.abs(below)), np.float32(0)).sum(-1)
