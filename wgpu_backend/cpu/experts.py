"""NumPy twins of `wgpu_backend.ops.experts`, `expert_tiles` and `experts_q8`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.q8 import values_of
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.expert_tiles import tiles_of


@twin
def mulmat_id(weights: Array, x: Array, ids: Array) -> Array:
    """Product of each row with the expert chosen for it; zeros for an id outside."""
    tokens, used = ids.shape
    rows = np.broadcast_to(x, (tokens, used, x.shape[-1]))
    y = np.zeros((tokens, used, weights.shape[1]), np.float32)
    for expert, matrix in enumerate(weights):
        chosen = ids == expert
        y[chosen] = rows[chosen] @ matrix.T
    return y


@twin
def mulmat_id_add(weights: Array, x: Array, ids: Array, bias: Array) -> Array:
    """`mulmat_id`, then `add_id`."""
    return add_id(mulmat_id(weights, x, ids), bias, ids)


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
def mulmat_id_tiles(
    weights: Array, x: Array, tiles: Array, bias: Array | None = None, *, used: int
) -> Array:
    """Product of each pair in a tile with the tile's expert."""
    rows = np.broadcast_to(x, (len(x), used, x.shape[-1])).reshape(-1, x.shape[-1])
    y = np.zeros((len(rows), weights.shape[1]), np.float32)
    for expert, *pairs in tiles[tiles[:, 0] >= 0]:
        some = [pair for pair in pairs if pair >= 0]
        y[some] = rows[some] @ weights[expert].T + (0 if bias is None else bias[expert])
    return y.reshape(len(x), used, -1)


@twin
def mulmat_id_q8(weights: Array, x: Array, ids: Array, bias: Array | None = None) -> Array:
    """`mulmat_id` of rounded rows."""
    y = mulmat_id(weights, values_of(x), ids)
    return y if bias is None else add_id(y, bias, ids)


@twin
def mulmat_id_q8_tiles(
    weights: Array, x: Array, tiles: Array, bias: Array | None = None, *, used: int
) -> Array:
    """`mulmat_id_tiles` of rounded rows."""
    return mulmat_id_tiles(weights, values_of(x), tiles, bias, used=used)


@twin
def add_id(x: Array, bias: Array, ids: Array) -> Array:
    """Row plus the bias of its expert; ids outside add nothing."""
    inside = (ids >= 0) & (ids < len(bias))
    return x + np.where(inside[..., None], bias[np.where(inside, ids, 0)], np.float32(0))
