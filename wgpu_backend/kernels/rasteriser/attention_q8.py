"""Paged attention whose result is stored in eight bits, for the product that follows."""

from __future__ import annotations

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.rasteriser.attention import by_lanes
from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.kernels.rasteriser.refusal import SHUFFLES, no_kernel
from wgpu_backend.ops.attention.paged import paged_attention_reference, paged_launch
from wgpu_backend.ops.attention.paged_options import Scores
from wgpu_backend.ops.attention.rope_attention import rope_attention, round_result
from wgpu_backend.ops.linear.q8 import GROUP, WORDS
from wgpu_backend.ops.linear.q8_rounding import q8_activations_reference
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array, takes_f16


def attend(launch: Launch, _: Capabilities) -> Launch:
    """Attend with tiles, and round what a head gives."""
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
