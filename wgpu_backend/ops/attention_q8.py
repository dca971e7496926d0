"""Paged attention whose result leaves in eight bits, for the product that follows."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, Made
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention import Scores, paged_launch
from wgpu_backend.ops.attention_kernels import select_tiles
from wgpu_backend.ops.check import require
from wgpu_backend.ops.op import op
from wgpu_backend.ops.q8 import GROUP, WORDS


@op(shader="attention", select=select_tiles, dense=("table",), trusted=True)
def paged_attention_q8(
    q: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    *,
    scores: Scores,
) -> Launch:
    """Attention in one pass, whose result is rounded as `q8_activations` rounds it.

    Made by a fusion rule, for rasterisers whose lanes tell each other values alone.

    Returns
    -------
    (tokens, heads * v_cols / 32, 12), u32
    """
    launch = paged_launch(q, k, v, positions, sequences, table, scores=scores)
    return rounded("paged_attention_q8", launch)


def rounded(name: str, launch: Launch) -> Launch:
    """Launch of attention whose result leaves in eight bits.

    Raises
    ------
    ShapeError
        A head is not made of whole groups.
    """
    tokens, heads, v_cols = launch.out.shape
    require(
        v_cols % GROUP == 0,
        ShapeError,
        f"{name}: values of a head are {v_cols}, needs a multiple of {GROUP}",
    )
    out = Spec.dense((tokens, heads * v_cols // GROUP, WORDS), U32)
    return replace(launch, out=out, choices={**launch.choices, "ROUNDED": True})


@paged_attention_q8.fuses("q8_activations", exact=False)
def rounded_attention(node: Made, graph: Graph) -> Node | None:
    """Attention that only a product with rounded activations reads."""
    found = graph.sole(node.operands["x"], "paged_attention")
    if found is None or not fits_rounded(found, node, graph):
        return None
    operands = (found.operands[n] for n in ("q", "k", "v", "positions", "sequences", "table"))
    return graph.call(paged_attention_q8, *operands, scores=found.call.kwargs["scores"])


def fits_rounded(found: Made, node: Made, graph: Graph) -> bool:
    """Whether attention can leave as `node` rounds it, and the device has that kernel."""
    tokens, heads, v_cols = found.spec.shape
    shape = (tokens, heads * v_cols // GROUP, WORDS)
    return graph.capabilities.telling_lanes and v_cols % GROUP == 0 and node.spec.shape == shape
