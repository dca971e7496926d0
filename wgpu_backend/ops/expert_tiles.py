"""Products by the chosen expert for many tokens: what chose the same expert is multiplied together.

`mulmat_id` reads an expert's weights for each token that chose it. Here a kernel first lists, by
expert, which pairs of a token and a choice there are, cut into tiles; the product then reads the
weights once a tile. Grids are fixed when a graph is recorded, so there are as many tiles as the
worst choice could need, and the empty ones are skipped. A rule does this where it pays.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, grid_for, require, require_dtype, require_rank
from wgpu_backend.ops.experts import (
    BIASED,
    by_rows,
    expert_product,
    mulmat_id_add,
    with_bias,
)
from wgpu_backend.ops.matmul import GROUP, WEIGHTS
from wgpu_backend.ops.op import find, op
from wgpu_backend.ops.register_tiles import EXPERT_TILE, f32_choices

# Products that may end with a bias, and what their third operand is.
FORMS = {
    "mulmat_id": "ids",
    "mulmat_id_q8": "ids",
    "mulmat_id_tiles": "tiles",
    "mulmat_id_q8_tiles": "tiles",
}


@op(trusted=True)
def expert_tiles(ids: Node, *, experts: int, size: int) -> Launch:
    """List which pairs of a token and a choice each expert has, in tiles of up to `size`.

    Parameters
    ----------
    ids : (tokens, used), i32
        Expert of each pair; pairs with an id outside ``0 … experts - 1`` are in no tile.
    experts, size : int

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
    tiles = tiles_of(pairs, experts, size)
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


def tiles_of(pairs: int, experts: int, size: int) -> int:
    """Tiles that so many pairs need at most, however they choose."""
    return pairs // size + experts


def select_tiles(launch: Launch, capabilities: Capabilities) -> Launch:
    """Size the grid of tiles in workgroup memory."""
    columns = launch.operands["ids"].spec.shape[1] - 1
    require(
        columns == EXPERT_TILE.columns,
        ShapeError,
        f"mulmat_id_tiles: tiles hold {columns} pairs, this device needs {EXPERT_TILE.columns}",
    )
    choices = {**launch.choices, **f32_choices(EXPERT_TILE)}
    return by_rows(replace(launch, choices=choices), EXPERT_TILE.rows)


@op(
    select=select_tiles,
    shader="kernels/gpu/matmul_tiled_by_expert",
    dense=("x", "bias"),
    trusted=True,
)
def mulmat_id_tiles(
    weights: Node, x: Node, tiles: Node, bias: Node | None = None, *, used: int
) -> Launch:
    """Multiply as `mulmat_id`, tile by tile of what chose the same expert.

    Parameters
    ----------
    weights, x
        See `mulmat_id`; k is a multiple of 32.
    tiles : (n, 1 + size), i32
        From `expert_tiles`. Rows of pairs that are in no tile are left as they are.
    bias : (experts, m), f32, f16 or bf16, or None
        Added to the rows of each expert.
    used : int
        Experts a token.

    Returns
    -------
    (tokens, used, m), f32

    Raises
    ------
    ShapeError
        As `mulmat_id`; or there are not as many tiles as the pairs may need.
    """
    name = "mulmat_id_tiles"
    require_rank(name, "x", x, 3, 3)
    require_dtype(name, "x", x, FLOATS)
    require_dtype(name, "weights", weights, WEIGHTS)
    return with_bias(name, tiled(name, expert_product(name, weights, x, tiles, used)), bias)


def tiled(name: str, launch: Launch) -> Launch:
    """Launch whose ids are tiles.

    Raises
    ------
    ShapeError
        There are not as many as the pairs may need, or rows of weights are not whole groups.
    """
    tiles, k = launch.operands["ids"].spec, launch.operands["weights"].spec.shape[-1]
    pairs, experts = launch.count("pairs"), launch.count("experts")
    require_dtype(name, "tiles", launch.operands["ids"], (I32,))
    require(
        k % GROUP == 0,
        ShapeError,
        f"{name}: rows of weights have {k} values, needs a multiple of {GROUP}",
    )
    size = tiles.shape[-1] - 1
    require(
        len(tiles.shape) == 2 and size > 0 and tiles.shape[0] == tiles_of(pairs, experts, size),
        ShapeError,
        f"{name}: tiles is {tiles.shape}, {pairs} pairs of {experts} experts need "
        f"({pairs} // size + {experts}, 1 + size)",
    )
    choices = {**launch.choices, "ids": "chosen/tiles"}
    return replace(launch, params={**launch.params, "tiles": tiles.shape[0]}, choices=choices)


def columns_for(pairs: int, experts: int, capabilities: Capabilities) -> int:
    """Pairs in a tile that suits a device; 1 where it is better that each is on its own."""
    each = pairs / experts if experts else 0
    return next((size for size, least in capabilities.expert_tiles if each >= least), 1)


def tiles_for(ids: Node, experts: int, graph: Graph) -> Node | None:
    """Tiles of the pairs of some tokens, shared by all products of these; None for few tokens."""
    size = columns_for(ids.spec.size, experts, graph.capabilities)
    return graph.shared(expert_tiles, ids, experts=experts, size=size) if size > 1 else None


@mulmat_id_tiles.fuses("mulmat_id")
def together(node: OpNode, graph: Graph) -> Node | None:
    """A product of as many tokens as make tiles of most experts."""
    weights, x, ids = node.arguments("weights", "x", "ids")
    if node.launch.shader == "mulmat_id_plain":
        return None
    tiles = tiles_for(ids, weights.spec.shape[0], graph)
    if tiles is None:
        return None
    return graph.call(mulmat_id_tiles, weights, x, tiles, used=ids.spec.shape[1])


@mulmat_id_add.fuses("add_id")
def bias_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """A product by the chosen expert, in whichever form, and the bias of that expert."""
    found = graph.single_use_producer(node.operands["x"], *FORMS)
    ids, bias = node.operands["ids"], node.operands["bias"]
    if found is None or found.launch.shader == "mulmat_id_plain" or "bias" in found.call.kwargs:
        return None
    weights, x, chosen = found.arguments("weights", "x", FORMS[found.op])
    if weights.spec.dtype not in BIASED or bias.spec.dtype not in FLOATS:
        return None
    tiles = graph.producer(chosen, "expert_tiles") if FORMS[found.op] == "tiles" else None
    own = tiles.operands["ids"] if tiles else chosen
    if own.storage is not ids.storage or own.spec != ids.spec:
        return None
    if found.op == "mulmat_id":
        return graph.call(mulmat_id_add, weights, x, chosen, bias)
    return graph.call(find(found.op), weights, x, chosen, **found.call.kwargs, bias=bias)
