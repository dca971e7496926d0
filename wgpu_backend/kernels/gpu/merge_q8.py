"""Ops that merge ranges of attention and round the result for the product that follows."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Callee, Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.kernels.gpu.f16_rounding import ROUNDING
from wgpu_backend.kernels.gpu.rounding import IN_Q16
from wgpu_backend.kernels.gpu.subgroups import EIGHT_LANES, has_eight_lanes
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.attention.splits import attention_merge_reference
from wgpu_backend.ops.check import require, require_dtype, require_rank
from wgpu_backend.ops.linear.f16_groups import f16_activations_reference, f16_spec
from wgpu_backend.ops.linear.q8_rounding import GROUP, q8_activations_reference, rounded_spec
from wgpu_backend.ops.linear.q16 import q16_activations_reference, q16_spec
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

TAIL = 4  # values behind those of a split
IN_F16 = f"{EIGHT_LANES}, and arithmetic in f16"


@op(
    select=no_kernel("attention_merge_q8", EIGHT_LANES, "attention_merge and q8_activations"),
    shader="kernels/gpu/attention_merge_q8",
    dense=("x",),
    trusted=True,
)
def attention_merge_q8(x: Node, *, planar: bool = False) -> Launch:
    """Merge attention over ranges of positions, rounded as by `q8_activations`.

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
    rows, groups = _extents("attention_merge_q8", x)
    return _merging(x, rounded_spec(rows, groups, planar), {"PLANAR": planar})


@attention_merge_q8.reference
def attention_merge_q8_reference(x: Array, *, planar: bool = False) -> Array:
    """Merge splits, then round."""
    return q8_activations_reference(attention_merge_reference(x).reshape(len(x), -1), planar=planar)


@op(
    select=no_kernel("attention_merge_q16", EIGHT_LANES, "attention_merge and q16_activations"),
    shader="kernels/gpu/attention_merge_q8",
    dense=("x",),
    trusted=True,
)
def attention_merge_q16(x: Node) -> Launch:
    """Merge attention over ranges of positions, rounded as by `q16_activations`.

    Parameters
    ----------
    x : (tokens, heads, splits, cols + 4), f32
        See `attention_merge`; `cols` is a multiple of 32.

    Returns
    -------
    (5, tokens, heads * cols / 32, 4), u32

    Raises
    ------
    ShapeError
        A head is not made of whole groups.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    rows, groups = _extents("attention_merge_q16", x)
    return _merging(x, q16_spec(rows, groups), IN_Q16)


@attention_merge_q16.reference
def attention_merge_q16_reference(x: Array) -> Array:
    """Merge splits, then round to sixteen bits."""
    return q16_activations_reference(attention_merge_reference(x).reshape(len(x), -1))


@op(
    select=no_kernel("attention_merge_f16", IN_F16, "attention_merge and f16_activations"),
    shader="kernels/gpu/attention_merge_q8",
    dense=("x",),
    trusted=True,
)
def attention_merge_f16(x: Node, *, planar: bool = False, nibbles: bool = False) -> Launch:
    """Merge attention over ranges of positions, rounded as by `f16_activations`.

    Parameters
    ----------
    x : (tokens, heads, splits, cols + 4), f32
        See `attention_merge`; `cols` is a multiple of 32.
    planar, nibbles : bool
        See `f16_activations`.

    Returns
    -------
    (tokens, heads * cols / 32, 20), u32, or planar (5, tokens, heads * cols / 32, 4)

    Raises
    ------
    ShapeError
        A head is not made of whole groups.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    rows, groups = _extents("attention_merge_f16", x)
    choices = {**ROUNDING, "PLANAR": planar, "NIBBLES": nibbles}
    return _merging(x, f16_spec(rows, groups, planar), choices)


@attention_merge_f16.reference
def attention_merge_f16_reference(
    x: Array, *, planar: bool = False, nibbles: bool = False
) -> Array:
    """Merge splits, then round to f16 by groups."""
    y = attention_merge_reference(x).reshape(len(x), -1)
    return f16_activations_reference(y, planar=planar, nibbles=nibbles)


def _extents(name: str, x: Node) -> tuple[Shape, int]:
    """Return the rows of a result, and the groups in each."""
    require_rank(name, "x", x, 4)
    require_dtype(name, "x", x, (F32,))
    tokens, heads, _, width = x.spec.shape
    cols = width - TAIL
    require(
        cols > 0 and cols % GROUP == 0,
        ShapeError,
        f"{name}: values of a head are {cols}, needs a multiple of {GROUP}",
    )
    return (tokens,), heads * cols // GROUP


def _merging(x: Node, out: Spec, choices: Mapping[str, str | bool]) -> Launch:
    tokens, heads, splits, width = x.spec.shape
    cols = width - TAIL
    size = tokens * heads * cols // GROUP
    return Launch(
        out,
        {"x": x},
        threads=8 * size,
        params={"size": size, "splits": splits, "vec4s": cols // 4},
        choices={**choices},
        work=x.spec.nbytes,
    )


def merges_f16(capabilities: Capabilities) -> bool:
    """Return whether eight lanes exchange values, and f16 arithmetic is available."""
    return capabilities.f16 and has_eight_lanes(capabilities)


def merge(launch: Launch, _: object) -> Launch:
    """Merge with eight lanes a group."""
    return launch


@attention_merge_q8.fuses("q8_activations", exact=False)
def rounded_merge(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a merge with the rounding to eight bits, if only products read it."""
    return _merge(node, graph, attention_merge_q8)


@attention_merge_q16.fuses("q16_activations", exact=False)
def merge_in_q16(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a merge with the rounding to sixteen bits, if only products read it."""
    return _merge(node, graph, attention_merge_q16)


@attention_merge_f16.fuses("f16_activations", exact=False)
def merge_in_f16(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a merge with the rounding to f16, if only products read it."""
    return _merge(node, graph, attention_merge_f16)


def _merge(node: OpNode, graph: Graph, merge: Callee) -> Node | None:
    """Return a merge by an op that rounds as `node` does; None if the shapes differ."""
    found = graph.single_use_producer(node.operands["x"], "attention_merge")
    if found is None or found.spec.shape[-1] % GROUP:
        return None
    made = graph.call(merge, found.operands["x"], **node.options)
    return made if made.spec.shape == node.spec.shape else None
