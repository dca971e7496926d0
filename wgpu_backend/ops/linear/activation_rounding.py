"""The rounding of activations: fusion rules for products and for the norms before them.

The rules apply if the caller allows rounding (``exact=False``) and the device is faster with it, by
format and class of columns: because a kernel family does, because `wgpu-backend tune` measured it,
or, without a measurement, because a product of packed bytes is one instruction.

Eight bits alone change the answers of trained models too much to be a default: perplexity may rise
by 0.5 %, and 98 % of best tokens have to stay (`benchmarks/quality.py`). So a caller has to allow
them (``coarse=True``). By default GPUs that multiply packed bytes round to sixteen bits for
products of few columns (`ops.linear.q16`), and to two parts of eight bits for many columns. Two
parts are also the default for weights in a layout that is made for such products
(`WeightLayout.for_bytes`). With many columns, and on GPUs without dot products of bytes, f16 is as
fast where hardware has it (`kernels/gpu`). Other devices keep f32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Callee, Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.check import (
    grid_for,
    require_rank,
    require_row,
    row_count,
)
from wgpu_backend.ops.layouts.layout import find_layout
from wgpu_backend.ops.linear.attributes import (
    Q8,
    Q8_PAIR,
    Q16,
    VALUES,
    Prologue,
    get_attributes,
)
from wgpu_backend.ops.linear.epilogue_rules import rebuild_product
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.normed import in_whole_groups
from wgpu_backend.ops.linear.q8 import (
    FORMATS,
    GROUP,
    fits_q8,
    q8_activations,
    q8_weighted,
    rounded_spec,
)
from wgpu_backend.ops.linear.q8_rounding import (
    PLANAR_COLUMNS,
    q8_activations_reference,
    q8_values,
    require_groups,
    to_planes,
)
from wgpu_backend.ops.linear.q16 import q16_activations, q16_weighted
from wgpu_backend.ops.linear.tiles import FEW, column_class
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import rms_norm_reference
from wgpu_backend.ops.reference import Array


def rounding_key(dtype: DType, columns: int, prologue: Prologue = Q8) -> str:
    """Return the key of measurements of products: format, class of columns, form of x."""
    return f"{dtype.name} {column_class(columns)}{' split' if prologue == Q8_PAIR else ''}"


def products_in(form: Prologue) -> frozenset[str]:
    """Return the names of all products of activations in a form."""
    # One number of columns for each class: one, few, many.
    return frozenset(rounding_key(dtype, n, form) for dtype in FORMATS for n in (1, FEW, FEW + 1))


# Bits of a weight from which on products are rounded without a measurement: weights of fewer bits
# are more sensitive to rounding.
FEWEST_BITS = 4
EVERY_PRODUCT = products_in(Q8) | products_in(Q8_PAIR)


def is_faster(
    dtype: DType, columns: int, capabilities: Capabilities, prologue: Prologue = Q8
) -> bool:
    """Return whether a product is faster with activations in eight bits, or in two 8-bit parts.

    What is known counts; else formats of four bits and more pay where the device has integer dot
    products. Formats of fewer bits keep f32 there, as they are the more sensitive to rounding.
    """
    key = rounding_key(dtype, columns, prologue)
    if key in capabilities.rounded:
        return True
    unknown = key not in capabilities.unrounded
    return unknown and capabilities.integer_dot and dtype in FORMATS and bits(dtype) >= FEWEST_BITS


def bits(dtype: DType) -> float:
    """Return the bits of a weight in a block format, including its share of the scales."""
    return 8 * dtype.block_nbytes / dtype.block


@op(dense=("x", "weight"), trusted=True)
def rms_norm_pair(
    x: Node, weight: Node | None = None, *, eps: float, planar: bool = False
) -> Launch:
    """Normalise rows as `rms_norm`, and split them as `q8_pair`.

    Parameters
    ----------
    x : (..., cols)
        f32; `cols` a multiple of 32.
    weight : (cols,)
        f32, or None.
    eps : float
        Added to the mean square.
    planar : bool
        See `q8_activations`.

    Returns
    -------
    (..., 2, cols / 32, 12), u32, or planar (3, ..., cols / 16, 4)
    """
    require_rank("rms_norm_pair", "x", x, 1, 2)
    cols, lead = require_groups("rms_norm_pair", x), x.spec.shape[:-1]
    if weight is not None:
        require_row("rms_norm_pair", "weight", weight, cols)
    rows = row_count(x.spec)
    return Launch(
        rounded_spec(lead, cols // GROUP, planar, 2),
        {"x": x, "weight": x if weight is None else weight},
        groups=grid_for(rows),
        params={"rows": rows, "groups": cols // GROUP, "eps": eps},
        choices={"WEIGHTED": weight is not None, "PLANAR": planar},
        work=2 * x.spec.nbytes,
    )


@rms_norm_pair.reference
def rms_norm_pair_reference(
    x: Array, weight: Array | None = None, *, eps: float, planar: bool = False
) -> Array:
    """Normalise, then split."""
    return q8_pair_reference(rms_norm_reference(x, weight, eps=eps), planar=planar)


@op(dense=("x",), trusted=True)
def q8_pair(x: Node, *, planar: bool = False) -> Launch:
    """Split a tensor into two 8-bit tensors, whose sum has about 15 bits.

    Parameters
    ----------
    x : (..., k)
        f32; `k` a multiple of 32.
    planar : bool
        See `q8_activations`.

    Returns
    -------
    (..., 2, k / 32, 12), u32, or planar (3, ..., k / 16, 4)
        As `q8_activations` gives `x`, and what rounding it left.
    """
    require_rank("q8_pair", "x", x, 1, 2)
    k, rows = require_groups("q8_pair", x), x.spec.shape[:-1]
    size = x.spec.size // GROUP
    return Launch(
        rounded_spec(rows, k // GROUP, planar, 2),
        {"x": x},
        threads=size,
        params={"size": size, "groups": k // GROUP},
        choices={"PLANAR": planar},
        work=2 * x.spec.nbytes,
    )


@q8_pair.reference
def q8_pair_reference(x: Array, *, planar: bool = False) -> Array:
    """Return the rounded values, and the rounded remainder."""
    first = q8_activations_reference(x)
    both = np.stack([first, q8_activations_reference(x - q8_values(first))], axis=-3)
    return to_planes(both.reshape(*x.shape[:-1], -1, 12)) if planar else both


@linear.fuses("linear", name="linear_q8", coarse=True)
def product(node: OpNode, graph: Graph) -> Node | None:
    """Round the activations of a product to eight bits, if its format has integer products."""
    # Logits have "full": eight bits may change which token is the likeliest.
    if get_attributes(node.launch).precision != "default":
        return None
    return _in_eight_bits(node, graph, q8_activations, Q8)


def pays_in_q16(dtype: DType, columns: int, capabilities: Capabilities) -> bool:
    """Return whether a product is faster in sixteen bits than in f32, f16 or two parts of eight.

    It is for few columns, where a dot product of packed bytes is one instruction. Measurements of
    two parts of eight bits apply here, since the arithmetic is the same.
    """
    few = dtype in FORMATS and 0 < columns <= PLANAR_COLUMNS
    if not few or not capabilities.planar_groups:
        return False
    key = rounding_key(dtype, columns, Q8_PAIR)
    unknown = key not in capabilities.unrounded
    return key in capabilities.rounded or (unknown and capabilities.integer_dot)


# Asked before `precise_product`, and so in its place where a device has a kernel for it.
@linear.fuses("linear", name="linear_q16", exact=False)
def few_in_sixteen_bits(node: OpNode, graph: Graph) -> Node | None:
    """Round the activations of a product of few columns, logits too, to sixteen bits."""
    found, weight, x = get_attributes(node.launch), node.operands["weights"], node.operands["x"]
    if found.precision == "f16" or found.prologue != VALUES or len(x.spec.shape) > 2:
        return None
    if not fits_q8(weight) or not pays_in_q16(
        weight.spec.dtype, row_count(x.spec), graph.capabilities
    ):
        return None
    return rebuild_product(node, graph, x=graph.shared(q16_activations, x), prologue=Q16)


@q16_weighted.fuses("linear", exact=False)
def norm_in_sixteen_bits(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm with its rounding to sixteen bits; the product applies the norm's factor."""
    bare = get_attributes(node.launch).prologue == Q16
    rounded = graph.producer(node.operands["x"], "q16_activations") if bare else None
    norm = rounded and graph.producer(rounded.operands["x"], "rms_norm")
    if norm is None or not in_whole_groups(norm):
        return None
    x, weighted = norm.operands["x"], norm.launch.choices["WEIGHTED"]
    scaled = (
        graph.shared(q16_weighted, x, weight=norm.operands["weight"])
        if weighted
        else graph.shared(q16_activations, x)
    )
    prologue = replace(Q16, eps=norm.call.kwargs["eps"])
    return rebuild_product(
        node, graph, x=graph.view(scaled, node.operands["x"].spec), prologue=prologue
    )


@linear.fuses("linear", name="linear_q8_pair", exact=False)
def precise_product(node: OpNode, graph: Graph) -> Node | None:
    """Split activations in two 8-bit parts: for logits, or for all products without fast f16."""
    precision = get_attributes(node.launch).precision
    known = graph.capabilities
    # There f16 is as fast, except for logits ("full"), which are never in f16.
    in_f16 = known.f16 and not known.few_registers
    if precision == "f16" or (precision == "default" and in_f16):
        return None
    return _in_eight_bits(node, graph, q8_pair, Q8_PAIR)


def _in_eight_bits(node: OpNode, graph: Graph, rounding: Callee, prologue: Prologue) -> Node | None:
    """Return the product of rounded rows, if that is possible and pays."""
    weight, x = node.operands["weights"], node.operands["x"]
    if get_attributes(node.launch).prologue != VALUES or not fits_q8(weight):
        return None
    columns, known = row_count(x.spec), graph.capabilities
    # f32 from such a layout takes 1.4 to 3.8 times as long as from planes
    # (benchmarks/log/decode.md).
    faster = _lies_for_bytes(weight) or is_faster(weight.spec.dtype, columns, known, prologue)
    if len(x.spec.shape) > 2 or not faster:
        return None
    # Kernels of more columns read whole groups.
    planar = known.planar_groups and prologue.parts * columns <= PLANAR_COLUMNS
    return rebuild_product(
        node, graph, x=graph.shared(rounding, x, planar=planar), prologue=prologue
    )


def _lies_for_bytes(weight: Node) -> bool:
    layout = find_layout(weight)
    return layout is not None and layout.for_bytes and layout.shows(weight.spec)


@q8_weighted.fuses("linear", exact=False)
def norm_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm with its rounding to eight bits; the product applies the norm's factor."""
    bare = get_attributes(node.launch).prologue == Q8
    rounded = graph.producer(node.operands["x"], "q8_activations") if bare else None
    norm = rounded and graph.producer(rounded.operands["x"], "rms_norm")
    if rounded is None or norm is None or not in_whole_groups(norm):
        return None
    scaled = _scale_rows(norm, graph, planar=bool(rounded.options.get("planar")))
    prologue = replace(Q8, eps=norm.call.kwargs["eps"])
    return rebuild_product(
        node, graph, x=graph.view(scaled, node.operands["x"].spec), prologue=prologue
    )


def _scale_rows(norm: OpNode, graph: Graph, *, planar: bool) -> Node:
    """Return the norm's rows, weighted and rounded, without its factor for each row."""
    x = norm.operands["x"]
    if norm.launch.choices["WEIGHTED"]:
        return graph.shared(q8_weighted, x, weight=norm.operands["weight"], planar=planar)
    return graph.shared(q8_activations, x, planar=planar)


@rms_norm_pair.fuses("q8_pair", exact=False)
def split_norm(node: OpNode, graph: Graph) -> Node | None:
    """Split a norm that only products of full precision read."""
    norm = graph.single_use_producer(node.operands["x"], "rms_norm")
    if norm is None or not in_whole_groups(norm):
        return None
    weight = norm.operands["weight"] if norm.launch.choices["WEIGHTED"] else None
    kwargs = {"eps": norm.call.kwargs["eps"], **node.options}
    return graph.call(rms_norm_pair, norm.operands["x"], weight, **kwargs)
