"""NumPy twins of `wgpu_backend.ops.moe.experts`, `summed` and `expert_tiles`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu import activation as activations
from wgpu_backend.cpu.expert_sum import expert_sum
from wgpu_backend.cpu.q8 import values_of
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.linear.attributes import VALUES, Prologue
from wgpu_backend.ops.moe.experts import tiles_of


@twin
def linear_by_expert(
    weights: Array,
    x: Array,
    ids: Array,
    bias: Array | None = None,
    *,
    used: int | None = None,
    prologue: Prologue = VALUES,
    activation: str | None = None,
) -> Array:
    """Product of each row with the expert chosen for it; zeros for an id outside."""
    rows = x if prologue.form == "values" else values_of(x)
    if activation is not None:
        gates, ups = weights if weights.ndim == 4 else np.split(weights, 2, axis=1)
        return getattr(activations, activation)(_each(gates, rows, ids)) * _each(ups, rows, ids)
    if used is not None:
        return _by_tiles(weights, rows, ids, bias, used)
    y = _each(weights, rows, ids)
    return y if bias is None else add_id(y, bias, ids)


def _each(weights: Array, x: Array, ids: Array) -> Array:
    tokens, used = ids.shape
    rows = np.broadcast_to(x, (tokens, used, x.shape[-1]))
    y = np.zeros((tokens, used, weights.shape[1]), np.float32)
    for expert, matrix in enumerate(weights):
        chosen = ids == expert
        y[chosen] = rows[chosen] @ matrix.T
    return y


@twin
def linear_by_expert_sum(
    weights: Array,
    x: Array,
    ids: Array,
    shares: Array,
    addend: Array | None = None,
    *,
    factor: float = 1.0,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """Sum of the products of a token's experts, each times its share."""
    return expert_sum(_each(weights, x, ids), shares, addend, factor=factor, shape=shape)


def _by_tiles(weights: Array, x: Array, tiles: Array, bias: Array | None, used: int) -> Array:
    """Product of each pair in a tile with the tile's expert."""
    rows = np.broadcast_to(x, (len(x), used, x.shape[-1])).reshape(-1, x.shape[-1])
    y = np.zeros((len(rows), weights.shape[1]), np.float32)
    for expert, *pairs in tiles[tiles[:, 0] >= 0]:
        some = [pair for pair in pairs if pair >= 0]
        y[some] = rows[some] @ weights[expert].T + (0 if bias is None else bias[expert])
    return y.reshape(len(x), used, -1)


@twin
def expert_tiles(ids: Array, *, experts: int, size: int) -> Array:
    """Pairs of each expert, in tiles from the place where its own begin."""
    flat = ids.reshape(-1)
    y = np.full((tiles_of(flat.size, experts, size), 1 + size), -1, np.int32)
    for expert in range(experts):
        pairs = np.flatnonzero(flat == expert)
        first = int(np.sum((flat >= 0) & (flat < expert))) // size + expert
        for tile, start in enumerate(range(0, len(pairs), size), first):
            some = pairs[start : start + size]
            y[tile, 0], y[tile, 1 : 1 + len(some)] = expert, some
    return y


@twin
def add_id(x: Array, bias: Array, ids: Array) -> Array:
    """Row plus the bias of its expert; ids outside add nothing."""
    inside = (ids >= 0) & (ids < len(bias))
    return x + np.where(inside[..., None], bias[np.where(inside, ids, 0)], np.float32(0))
