"""Products by expert for many tokens: pairs of one expert are multiplied together.

A product by pairs reads an expert's weights for each token that chose it. Here a kernel first lists
the pairs (token, choice) of each expert, cut into tiles; the product then reads the weights once
per tile. Grids are fixed when a graph is recorded, so there are as many tiles as the worst choice
could need, and empty ones are skipped. A fusion rule does this where it pays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wgpu_backend.dtypes import I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, grid_for, require, require_dtype, require_rank
from wgpu_backend.ops.moe.experts import (
    BIASED,
    count_tiles,
    in_tiles,
    is_gated,
    is_plain,
    linear_by_expert,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(trusted=True)
def expert_tiles(ids: Node, *, experts: int, size: int) -> Launch:
    """List the pairs (token, choice) of each expert, in tiles of up to `size`.

    Parameters
    ----------
    ids : (tokens, used), i32
        Expert of each pair; pairs with an id outside ``0 … experts - 1`` are in no tile.

    Returns
    -------
    (tiles, 1 + size), i32
        Of each tile its expert, and its pairs ``t * used + u`` in their order. -1 stands for the
        expert of a tile that has no pairs, and fills up the last of each expert. Tiles of expert e
        begin at ``before / size + e``, `before` being the pairs of lower experts.
    """
    require_rank("expert_tiles", "ids", ids, 2, 2)
    require_dtype("expert_tiles", "ids", ids, (I32,))
    require(
        experts > 0 and size > 0,
        ShapeError,
        f"expert_tiles: tiles of {size} for {experts} experts, needs at least 1",
    )
    pairs = ids.spec.size
    tiles = count_tiles(pairs, experts, size)
    return Launch(
        Spec.dense((tiles, 1 + size), I32),
        {"ids": ids},
        groups=grid_for(experts),
        params={
            "pairs": pairs,
            "used": ids.spec.shape[1],
            "experts": experts,
            "size": size,
            "tiles": tiles,
        },
        work=2 * pairs * experts,
    )


@expert_tiles.reference
def expert_tiles_reference(ids: Array, *, experts: int, size: int) -> Array:
    """List the pairs of each expert, in tiles from the expert's first tile on."""
    flat = ids.reshape(-1)
    y = np.full((count_tiles(flat.size, experts, size), 1 + size), -1, np.int32)
    for expert in range(experts):
        pairs = np.flatnonzero(flat == expert)
        # Every expert before may leave one tile partly empty. So places need no running sum, and
        # work groups run in any order.
        first = int(np.sum((flat >= 0) & (flat < expert))) // size + expert
        for tile, start in enumerate(range(0, len(pairs), size), first):
            some = pairs[start : start + size]
            y[tile, 0], y[tile, 1 : 1 + len(some)] = expert, some
    return y


def columns_for(pairs: int, experts: int, capabilities: Capabilities) -> int:
    """Return how many pairs a tile should have on a device; 1 for a product by pairs."""
    # The average decides: how many pairs an expert really has is known on the device only.
    each = pairs / experts if experts else 0
    return next((size for size, least in capabilities.expert_tiles if each >= least), 1)


def tiles_for(ids: Node, experts: int, graph: Graph) -> Node | None:
    """Return tiles of pairs, shared by all products with these ids; None for few tokens."""
    size = columns_for(ids.spec.size, experts, graph.capabilities)
    return graph.shared(expert_tiles, ids, experts=experts, size=size) if size > 1 else None


@linear_by_expert.fuses("linear_by_expert", name="linear_by_expert_tiles")
def together(node: OpNode, graph: Graph) -> Node | None:
    """Rewrite a product of enough tokens to fill tiles of most experts."""
    if is_plain(node.launch) or in_tiles(node.launch) or is_gated(node.launch):
        return None
    weights, ids = node.arguments("weights", "x", "ids")[::2]
    tiles = tiles_for(ids, weights.spec.shape[0], graph)
    return tiles and rebuild_product(node, graph, ids=tiles, used=ids.spec.shape[1])


@linear_by_expert.fuses("add_id", name="linear_by_expert_add")
def bias_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a product by expert, in any form, with the expert's bias."""
    found = graph.single_use_producer(node.operands["x"], "linear_by_expert")
    ids, bias = node.operands["ids"], node.operands["bias"]
    if found is None or not _takes_bias(found):
        return None
    weights, chosen = found.arguments("weights", "x", "ids")[::2]
    if weights.spec.dtype not in BIASED or bias.spec.dtype not in FLOATS:
        return None
    tiles = graph.producer(chosen, "expert_tiles") if in_tiles(found.launch) else None
    # The bias is looked up by the ids themselves, so they must be those of the tiles.
    own = tiles.operands["ids"] if tiles else chosen
    if own.storage is not ids.storage or own.spec != ids.spec:
        return None
    return rebuild_product(found, graph, bias=bias)


def _takes_bias(product: OpNode) -> bool:
    has_one = "bias" in product.operands or is_gated(product.launch)
    return not has_one and not is_plain(product.launch)


def rebuild_product(product: OpNode, graph: Graph, **changes: Any) -> Node:  # noqa: ANN401
    """Rebuild a product by expert with other operands or another prologue.

    Parameters
    ----------
    product : OpNode
        By `linear_by_expert`.
    changes : Node, Prologue or int
        Arguments of `linear_by_expert` by their names.
    """
    names = ("weights", "x", "ids", "bias")
    given = {**dict(zip(names, product.call.args, strict=False)), **product.call.kwargs}
    return graph.call(linear_by_expert, **{**given, **changes})
