"""Products by expert with activations in eight bits."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.rasteriser.capabilities import LANES, shuffles
from wgpu_backend.kernels.rasteriser.experts import TILE_ROWS
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.kernels.rasteriser.interleaved_rows import has_short_rows
from wgpu_backend.kernels.rasteriser.products_q8 import SHORT, SHORT_COLUMNS, groups_per_iteration
from wgpu_backend.ops.linear.attributes import Q8, VALUES, get_attributes
from wgpu_backend.ops.linear.q8 import FORMATS, q8_activations
from wgpu_backend.ops.moe.expert_tiles import again
from wgpu_backend.ops.moe.experts import (
    by_rows,
    in_tiles,
    is_gated,
    is_plain,
    linear_by_expert,
    pairs_per_tile,
)

SHADER = f"{FOLDER}/matmul_q8_by_expert"
TOUCHED_PAIRS = 8  # up to this many alone, products wait for memory


def product(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply each pair of a token and a choice by itself, or those of a tile together."""
    if is_plain(launch) or is_gated(launch) or get_attributes(launch).prologue != Q8:
        return None
    dtype = launch.operands["weights"].spec.dtype
    tiles, columns = in_tiles(launch), pairs_per_tile(launch)
    short = columns <= SHORT_COLUMNS and dtype in SHORT
    choices = {
        **launch.choices,
        "weights": f"{FOLDER}/dot/{dtype}",
        "sums": f"{LIB}/sums_of_pairs",
        "ROWS": TILE_ROWS,
        "COLS": columns,
        "BLOCK": groups_per_iteration(launch, columns),
        "GROUPS": launch.count("groups") if short else 0,
        "TOUCH": not tiles and launch.count("pairs") <= TOUCHED_PAIRS and has_short_rows(launch),
        "WG": LANES,
    }
    if shuffles(capabilities):
        choices |= {"x": f"{LIB}/column_shuffled", "words": f"{LIB}/words_u64"}
    return by_rows(replace(launch, shader=SHADER, choices=choices), LANES * TILE_ROWS)


@linear_by_expert.fuses("linear_by_expert", name="linear_by_expert_q8", coarse=True)
def in_eight_bits(node: OpNode, graph: Graph) -> Node | None:
    """Round the activations of a product by expert, if its format has an integer form."""
    weights, x = node.arguments("weights", "x")
    fits = weights.spec.dtype in FORMATS and x.spec.dtype == F32 and not is_plain(node.launch)
    fits = fits and not is_gated(node.launch)
    if (
        not graph.capabilities.software
        or get_attributes(node.launch).prologue != VALUES
        or not fits
    ):
        return None
    return again(node, graph, x=graph.shared(q8_activations, x), prologue=Q8)
