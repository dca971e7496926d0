"""Products by the chosen expert with activations in eight bits, as `q8` has them for one weight."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import F32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Callee, Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.rasteriser.experts import TILE_ROWS
from wgpu_backend.kernels.rasteriser.products_q8 import SHORT, SHORT_COLUMNS, groups_of_a_turn
from wgpu_backend.kernels.rasteriser.refusal import RASTERISER, no_kernel
from wgpu_backend.kernels.rasteriser.strips import has_short_rows
from wgpu_backend.ops.check import require, require_dtype, require_rank
from wgpu_backend.ops.expert_tiles import tiled
from wgpu_backend.ops.experts import by_rows, expert_product, used_by, with_bias
from wgpu_backend.ops.op import op
from wgpu_backend.ops.q8 import (
    FORMATS,
    GROUP,
    WORDS,
    q8_activations,
)
from wgpu_backend.ops.tiles import LANES

SHADER = "kernels/rasteriser/mulmat_id_q8"
TOUCHED_PAIRS = 8  # up to this many alone, products wait for memory


def product(launch: Launch, capabilities: Capabilities) -> Launch:
    """Multiply each pair of a token and a choice by itself, or those of a tile together."""
    tiles = launch.choices["ids"] == "chosen/tiles"
    columns = launch.operands["ids"].spec.shape[1] - 1 if tiles else 1
    short = columns <= SHORT_COLUMNS and launch.operands["weights"].spec.dtype in SHORT
    choices = {
        **launch.choices,
        "ROWS": TILE_ROWS,
        "COLS": columns,
        "BLOCK": groups_of_a_turn(launch, columns),
        "GROUPS": launch.count("groups") if short else 0,
        "TOUCH": not tiles and launch.count("pairs") <= TOUCHED_PAIRS and has_short_rows(launch),
        "WG": LANES,
    }
    if capabilities.telling_lanes:
        choices |= {"x": "rasteriser/column", "words": "rasteriser/words"}
    return by_rows(replace(launch, choices=choices), LANES * TILE_ROWS)


@op(
    select=no_kernel("mulmat_id_q8", RASTERISER, "mulmat_id"),
    shader=SHADER,
    dense=("x", "bias"),
    trusted=True,
)
def mulmat_id_q8(weights: Node, x: Node, ids: Node, bias: Node | None = None) -> Launch:
    """Multiply as `mulmat_id`, with rows of `x` rounded to eight bits.

    Parameters
    ----------
    weights : (experts, m, k), dense, a format that `mulmat_q8` takes
    x : (tokens, 1 or used, k / 32, 12), u32
        From `q8_activations`.
    ids : (tokens, used), i32
        As in `mulmat_id`.
    bias : (experts, m), f32, f16 or bf16, or None
        Added to the rows of each expert.

    Returns
    -------
    (tokens, used, m), f32

    Raises
    ------
    ShapeError
        As `mulmat_id`, or `x` is not made of groups.
    DTypeError
        The format has no integer form.
    """
    _require_rounded("mulmat_id_q8", weights, x)
    used = used_by("mulmat_id_q8", ids, x.spec.shape[0])
    launch = _in_integers(expert_product("mulmat_id_q8", weights, x, ids, used))
    return with_bias("mulmat_id_q8", launch, bias)


@op(
    select=no_kernel("mulmat_id_q8_tiles", RASTERISER, "mulmat_id_tiles"),
    shader=SHADER,
    dense=("x", "bias"),
    trusted=True,
)
def mulmat_id_q8_tiles(
    weights: Node, x: Node, tiles: Node, bias: Node | None = None, *, used: int
) -> Launch:
    """Multiply as `mulmat_id_tiles`, with rows of `x` rounded to eight bits.

    Parameters
    ----------
    weights, x
        See `mulmat_id_q8`.
    tiles, bias, used
        See `mulmat_id_tiles`.

    Returns
    -------
    (tokens, used, m), f32

    Raises
    ------
    ShapeError
        As `mulmat_id_tiles`, or `x` is not made of groups.
    DTypeError
        The format has no integer form.
    """
    name = "mulmat_id_q8_tiles"
    _require_rounded(name, weights, x)
    launch = _in_integers(expert_product(name, weights, x, tiles, used))
    return with_bias(name, tiled(name, launch), bias)


def _require_rounded(name: str, weights: Node, x: Node) -> None:
    require_dtype(name, "weights", weights, FORMATS)
    require_rank(name, "x", x, 4, 4)
    require_dtype(name, "x", x, (U32,))
    require(
        x.spec.shape[3] == WORDS,
        ShapeError,
        f"{name}: groups of x have {x.spec.shape[3]} words, needs {WORDS}",
    )


def _in_integers(launch: Launch) -> Launch:
    choices = {
        "weights": f"dot/{launch.operands['weights'].spec.dtype.name}",
        "x": "column/own",
        "ids": "chosen/each",
        "sums": "sums/pairs",
    }
    return replace(launch, choices=choices, work=launch.work // 2)


@mulmat_id_q8.fuses("mulmat_id", exact=False)
def alone(node: OpNode, graph: Graph) -> Node | None:
    """A product of experts in a format that has an integer form."""
    return _rounded(node, graph, mulmat_id_q8, "ids")


@mulmat_id_q8_tiles.fuses("mulmat_id_tiles", exact=False)
def by_tiles(node: OpNode, graph: Graph) -> Node | None:
    """The same of many tokens."""
    return _rounded(node, graph, mulmat_id_q8_tiles, "tiles")


def _rounded(node: OpNode, graph: Graph, product: Callee, ids: str) -> Node | None:
    weights, x, chosen = node.arguments("weights", "x", ids)
    fits = weights.spec.dtype in FORMATS and x.spec.dtype == F32 and x.spec.shape[-1] % GROUP == 0
    if not graph.capabilities.software or not fits:
        return None
    kept = {name: v for name, v in node.call.kwargs.items() if name in ("used", "bias")}
    return graph.call(product, weights, graph.shared(q8_activations, x), chosen, **kept)
