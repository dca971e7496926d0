"""Attention on rasterisers: each lane scores positions and sums values by itself.

Paged attention, the same with a result in eight bits, and attention over plain keys share a tile:
heads of queries that share keys, and neighbouring tokens.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.rasteriser.capabilities import LANES, shuffles
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.attention.paged import paged_attention_reference, paged_launch
from wgpu_backend.ops.attention.paged_kernels import Rows, count_rows, most, use_tiles
from wgpu_backend.ops.attention.paged_options import Scores
from wgpu_backend.ops.attention.rope_attention import (
    NORMS,
    has_bindings,
    more_bindings,
    rope_attention,
    round_result,
)
from wgpu_backend.ops.attention.scaled_kernels import by_queries, in_vectors
from wgpu_backend.ops.check import MAX_GROUPS
from wgpu_backend.ops.linear.q8 import GROUP, WORDS
from wgpu_backend.ops.linear.q8_rounding import q8_activations_reference
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import reducing_rows
from wgpu_backend.ops.reference import Array, takes_f16

# The devices that the kernels here need, for error texts.
SHUFFLES = "a rasteriser whose lanes shuffle values"
# Positions that each lane scores at once: 2, 6 and 8 were 2 to 20 % slower.
LANE_POSITIONS = 4
# Vectors of results that each lane holds.
LANE_SUMS = 16
# Tiles have as many rows as one of these says: each is a kernel of its own, which takes a while to
# compile.
LANE_ROWS = (1, 2, 4, 8)


def attend(launch: Launch, capabilities: Capabilities) -> Launch:
    """Attend with tiles where lanes shuffle, else with one row per work group."""
    return by_lanes(launch) if shuffles(capabilities) else _plain(launch)


def attend_prepared(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Attend after norms, rotation and cache write; None if the device binds too few buffers."""
    if not has_bindings(capabilities, more_bindings(launch)):
        return None
    launch = by_lanes(launch)
    normed = any(name in launch.operands for name in NORMS)
    return reducing_rows(launch, f"{LIB}/row_subgroup") if normed else launch


def by_lanes(launch: Launch) -> Launch:
    """Return the launch of the kernel for lanes that shuffle."""
    rows = count_rows(launch)
    step, choices = lane_tile(rows, launch.count("v_vec4s"))
    return use_tiles(replace(launch, shader=f"{FOLDER}/attention"), rows, step, choices)


def lane_tile(rows: Rows, v_vec4s: int) -> tuple[int, dict[str, str | int]]:
    """Return the rows of a tile, and the choices, of kernels with the family's `lane_tile`."""
    lane_vec4s = -(-v_vec4s // LANES)
    step = rows.step(most(LANE_ROWS, LANE_SUMS // lane_vec4s))
    return step, {
        "WG": LANES,
        "ROWS": next(n for n in LANE_ROWS if n >= step),
        "POSITIONS": LANE_POSITIONS,
        "LANE_VEC4S": lane_vec4s,
    }


def _plain(launch: Launch) -> Launch:
    """Return a launch of one row per work group; tiles in workgroup memory take 10 s to compile."""
    choices: dict[str, str | int] = {
        "WG": LANES,
        "LANE_VEC4S": -(-launch.count("v_vec4s") // LANES),
        "Q_SIZE": launch.operands["q"].spec.shape[2],
    }
    plain = replace(launch, shader=f"{FOLDER}/attention_plain")
    return use_tiles(plain, count_rows(launch), 1, choices)


def attend_plain_keys(launch: Launch, capabilities: Capabilities) -> Launch:
    """Attend by lanes that shuffle, or by queries of one head in work groups of eight."""
    # Lanes load four values at once.
    vectors = in_vectors(launch, "k") and in_vectors(launch, "v")
    found = _plain_keys_by_lanes(launch) if shuffles(capabilities) and vectors else None
    return found or by_queries(launch, LANES)


def _plain_keys_by_lanes(launch: Launch) -> Launch | None:
    """Return a launch whose lanes share a key head's queries; None for too many sums or tiles."""
    batch, tokens, heads, _ = launch.operands["q"].spec.shape
    keys, v = launch.operands["k"].spec, launch.operands["v"].spec
    rows = Rows(tokens, heads // keys.shape[2], sequences=0)
    step, choices = lane_tile(rows, v.shape[3] // 4)
    tiles = max(-(-tokens * rows.group // max(step, 1)), 1)
    if v.shape[3] > 4 * LANES * LANE_SUMS or tiles > MAX_GROUPS:
        return None
    return replace(
        launch,
        shader=f"{FOLDER}/scaled_attention",
        groups=(keys.shape[2], tiles, max(batch, 1) * launch.count("splits")),
        params={**launch.params, "step": step},
        choices={**launch.choices, **choices},
    )


def attend_rounded(launch: Launch, _: Capabilities) -> Launch:
    """Attend with tiles, and round each head's result."""
    return by_lanes(launch)


@op(
    shader="ops/attention/attention",
    select=no_kernel("paged_attention_q8", SHUFFLES, "paged_attention"),
    dense=("table",),
    trusted=True,
)
def paged_attention_q8(
    q: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    *,
    scores: Scores,
    ends: Node | None = None,
    sinks: Node | None = None,
    bias: Node | None = None,
) -> Launch:
    """Attend in one pass, and round the result as `q8_activations` does.

    Made by a fusion rule, for rasterisers whose lanes shuffle values alone.

    Returns
    -------
    (tokens, heads * v_cols / 32, 12), u32
    """
    operands = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "table": table,
        "ends": ends, "sinks": sinks, "bias": bias,
    }  # fmt: skip
    return round_result("paged_attention_q8", paged_launch(operands, scores=scores))


@paged_attention_q8.reference
@takes_f16
def paged_attention_q8_reference(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    *,
    scores: Scores,
    ends: Array | None = None,
    sinks: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Attend, then round."""
    operands, others = (q, k, v, positions, sequences, table), (ends, sinks, bias)
    named = dict(zip(("ends", "sinks", "bias"), others, strict=True))
    y = paged_attention_reference(*operands, scores=scores, **named)
    return q8_activations_reference(y.reshape(len(y), -1))


@paged_attention_q8.fuses("q8_activations", exact=False)
def rounded_attention(node: OpNode, graph: Graph) -> Node | None:
    """Fuse attention with the rounding of its result, if only a product reads it."""
    found = graph.single_use_producer(node.operands["x"], "paged_attention")
    if found is None or not fits_rounded(found, node, graph):
        return None
    return graph.call(paged_attention_q8, **found.operands, scores=found.call.kwargs["scores"])


def fits_rounded(found: OpNode, node: OpNode, graph: Graph) -> bool:
    """Return whether attention can round its result as `node` does, with a kernel of the device."""
    tokens, heads, v_cols = found.spec.shape
    shape = (tokens, heads * v_cols // GROUP, WORDS)
    return shuffles(graph.capabilities) and v_cols % GROUP == 0 and node.spec.shape == shape


@rope_attention.fuses("q8_activations", exact=False)
def into_rounded_product(node: OpNode, graph: Graph) -> Node | None:
    """Fuse attention with a prologue and the rounding of its result, if only a product reads it."""
    found = graph.single_use_producer(node.operands["x"], "rope_attention")
    if found is None or not graph.absorb(found, node) or not fits_rounded(found, node, graph):
        return None
    return graph.call(rope_attention, *found.call.args, **{**found.call.kwargs, "rounds": True})
