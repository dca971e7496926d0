"""Ranges of attention joined and rounded to eight bits, for the product that follows."""

from __future__ import annotations

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.gpu.subgroups import EIGHT_LANES, has_eight_lanes
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.check import require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.rounding.q8_rounding import GROUP, rounded_spec

TAIL = 4  # values behind those of a split


@op(
    select=no_kernel("attention_merge_q8", EIGHT_LANES, "attention_merge and q8_activations"),
    shader="kernels/gpu/attention_merge_q8",
    dense=("x",),
    trusted=True,
)
def attention_merge_q8(x: Node, *, planar: bool = False) -> Launch:
    """Join attention over ranges of positions, rounded as `q8_activations` rounds it.

    Parameters
    ----------
    x : (tokens, heads, splits, cols + 4), f32
        See `attention_merge`; `cols` is a multiple of 32.
    planar : bool
        See `q8_activations`.

    Returns
    -------
    (tokens, heads * cols / 32, 12), u32, or planar (3, tokens, heads * cols / 32, 4)

    Raises
    ------
    ShapeError
        A head is not made of whole groups.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    require_rank("attention_merge_q8", "x", x, 4)
    require_dtype("attention_merge_q8", "x", x, (F32,))
    tokens, heads, splits, width = x.spec.shape
    cols = width - TAIL
    require(
        cols > 0 and cols % GROUP == 0,
        ShapeError,
        f"attention_merge_q8: values of a head are {cols}, needs a multiple of {GROUP}",
    )
    size = tokens * heads * cols // GROUP
    return Launch(
        rounded_spec((tokens,), heads * cols // GROUP, planar),
        {"x": x},
        threads=8 * size,
        params={"size": size, "splits": splits, "quads": cols // 4},
        choices={"PLANAR": planar},
        work=x.spec.nbytes,
    )


def merge(launch: Launch, _: object) -> Launch:
    """Join by eight lanes a group."""
    return launch


@attention_merge_q8.fuses("q8_activations", exact=False)
def rounded_merge(node: OpNode, graph: Graph) -> Node | None:
    """Ranges that only products with rounded activations read."""
    found = graph.single_use_producer(node.operands["x"], "attention_merge")
    if found is None or not has_eight_lanes(graph.capabilities):
        return None
    tokens, heads, cols = found.spec.shape
    planar = bool(node.options.get("planar"))
    wanted = rounded_spec((tokens,), heads * cols // GROUP, planar)
    if cols % GROUP or node.spec.shape != wanted.shape:
        return None
    return graph.call(attention_merge_q8, found.operands["x"], planar=planar)
