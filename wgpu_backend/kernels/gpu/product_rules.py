"""Fusion rules of products on GPUs: activations in f16, and norms inside the product.

The rules that round apply where the caller allows that, and not to eight bits alone. They round
values of x, and weights that are not f16 anyway, to eleven bits, and sum up to 32 products in f16
before the sum goes into f32: an NMSE of up to 1e-6, where eight bits cost some 4e-5.

The order of these functions matters: rules of one op are tried in the order of their definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wgpu_backend.dtypes import F16, F32
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.kernels.gpu.pairs import FORMATS, IN_COLUMNS, f16_columns
from wgpu_backend.kernels.gpu.products import multiplies_f16, tiles_in_f16
from wgpu_backend.kernels.gpu.register_tiles import FEWEST_VALUES, MOST_PARTS
from wgpu_backend.kernels.gpu.rows import f16_activations, f16_weighted
from wgpu_backend.ops.check import FLOATS, row_count
from wgpu_backend.ops.linear.activation_rounding import pays_in_q16
from wgpu_backend.ops.linear.attributes import VALUES, Prologue, get_attributes
from wgpu_backend.ops.linear.epilogue_rules import adds, rebuild_product
from wgpu_backend.ops.linear.f16_groups import BESIDE_NIBBLES, NIBBLES, WEIGHTS, is_planar
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.normed import in_whole_groups
from wgpu_backend.ops.moe.expert_tiles import rebuild_product as rebuild_by_expert
from wgpu_backend.ops.moe.experts import in_tiles, linear_by_expert


@linear.fuses("linear", name="linear_f16_groups", exact=False)
def few_in_f16(node: OpNode, graph: Graph) -> Node | None:
    """Round the activations of a product of few columns to f16, where that pays."""
    found, weight, x = get_attributes(node.launch), node.operands["weights"], node.operands["x"]
    if found.precision != "default" or found.prologue != VALUES or len(x.spec.shape) > 2:
        return None
    if not _pays(weight, row_count(x.spec), graph.capabilities):
        return None
    dtype = weight.spec.dtype
    # Formats that share x with these in mixes (Q6_K and Q4_K) take the same rounding, so that x is
    # rounded once.
    how = {"planar": is_planar(dtype), "nibbles": True}
    shares = dtype in BESIDE_NIBBLES and graph.is_shared(f16_activations, x, **how)
    nibbles = dtype in NIBBLES or shares
    rounded = graph.shared(f16_activations, x, planar=is_planar(dtype), nibbles=nibbles)
    return rebuild_product(
        node, graph, x=rounded, prologue=Prologue("f16_nibbles" if nibbles else "f16")
    )


def _pays(weight: Node, columns: int, capabilities: Capabilities) -> bool:
    """Return whether f16 activations are faster than those in f32 and in eight bits."""
    dtype = weight.spec.dtype
    if pays_in_q16(dtype, columns, capabilities):
        return False
    # In f16 a sum of eight products has to be scaled for each column, so f32 is as fast. GPUs that
    # multiply packed bytes also multiply f16 by f32.
    floats = 0 if capabilities.integer_dot else 1
    most = floats if dtype == F16 else COLUMNS
    return dtype in WEIGHTS and 0 < columns <= most and multiplies_f16(capabilities)


@f16_weighted.fuses("linear", exact=False)
def norm_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm with its rounding to f16; the product applies the norm's factor."""
    prologue = get_attributes(node.launch).prologue
    # `linear_f16_groups` runs first and leaves this form. A second norm cannot be joined.
    bare = prologue.in_f16 and prologue.eps is None
    rounded = graph.producer(node.operands["x"], "f16_activations") if bare else None
    norm = rounded and graph.producer(rounded.operands["x"], "rms_norm")
    if rounded is None or norm is None or not in_whole_groups(norm):
        return None
    x = graph.view(_scale_rows(norm, graph, rounded.options), node.operands["x"].spec)
    return rebuild_product(
        node, graph, x=x, prologue=replace(prologue, eps=norm.call.kwargs["eps"])
    )


def _scale_rows(norm: OpNode, graph: Graph, layout: Mapping[str, Any]) -> Node:
    """Return the norm's rows, weighted and rounded to f16, without its factor for each row."""
    x = norm.operands["x"]
    if norm.launch.choices["WEIGHTED"]:
        return graph.shared(f16_weighted, x, weight=norm.operands["weight"], **layout)
    return graph.shared(f16_activations, x, **layout)


# The extra dispatch takes 3 us; a product of 4096 x 4096 saves more from this many columns on.
LEAST_COLUMNS = 128
# For fewer columns, pairs of rows save as much if there are enough threads. Each sums 8 rows by 8
# columns of at least 512 values of k. Otherwise the smaller tiles of `in_pairs` are better.
THREAD_SUMS, ENOUGH_THREADS = 64, 8192


@linear.fuses("linear", name="linear_f16", exact=False)
def in_pairs(node: OpNode, graph: Graph) -> Node | None:
    """Replace a product of many columns by the one with pairs of f16."""
    found, weight = get_attributes(node.launch), node.operands["weights"]
    dtype, n = weight.spec.dtype, row_count(node.operands["x"].spec)
    if found.precision != "default" or found.prologue != VALUES or n <= COLUMNS or dtype == F32:
        return None
    if not tiles_in_f16(graph.capabilities):
        return None
    return rebuild_product(node, graph, precision="f16")


@linear_by_expert.fuses("linear_by_expert", name="linear_by_expert_f16", exact=False)
def experts_in_pairs(node: OpNode, graph: Graph) -> Node | None:
    """Replace a product of tiles by expert by the one with pairs of f16."""
    found, dtype = get_attributes(node.launch), node.operands["weights"].spec.dtype
    if not in_tiles(node.launch) or found.precision != "default" or found.prologue != VALUES:
        return None
    if dtype == F32 or not tiles_in_f16(graph.capabilities):
        return None
    return rebuild_by_expert(node, graph, precision="f16")


# Each work group of a product would round the same values of x again, and groups of rows are many.
# So where columns are many, too, they are rounded once.
@linear.fuses("linear", name="linear_f16_once", exact=False)
def rounded_once(node: OpNode, graph: Graph) -> Node | None:
    """Round the columns of a product once to f16, and multiply pairs of rows, where that pays."""
    found, x, weight = get_attributes(node.launch), node.operands["x"], node.operands["weights"]
    if found.precision != "f16" or found.prologue != VALUES or weight.spec.dtype not in FORMATS:
        return None
    if len(x.spec.shape) > 2 or not _pays_once(weight, row_count(x.spec)):
        return None
    return rebuild_product(node, graph, x=graph.shared(f16_columns, x), prologue=IN_COLUMNS)


def _pays_once(weight: Node, columns: int) -> bool:
    """Return whether a product has enough columns, or enough work for its columns to be rounded."""
    m, k = weight.spec.shape
    parts = max(1, min(MOST_PARTS, k // FEWEST_VALUES))
    return columns >= LEAST_COLUMNS or m * columns * parts >= THREAD_SUMS * ENOUGH_THREADS


# Every work group reads whole rows of x, so it can sum their squares, too. That is a fifth more
# instructions for one column and two fifths for eight, which products with floats have to spare,
# since they wait for memory. Products with blocks do not.
MOST_COLUMNS = 8


@linear.fuses("linear", name="linear_norm")
def norm_in_rows(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm with the float products that alone read it."""
    norm = graph.producer(node.operands["x"], "rms_norm")
    if norm is None or not norm.launch.choices["WEIGHTED"] or not in_whole_groups(norm):
        return None
    # If another op needed the norm, it would be computed anyway, and this would only add work.
    if not graph.serves_only(norm.node, lambda reader: _makes_norm(reader, norm)):
        return None
    x, like = norm.operands["x"], node.operands["x"].spec
    rows = graph.view(x, replace(like, offset=x.spec.offset))
    prologue = Prologue(eps=norm.options["eps"], norm=True)
    return rebuild_product(node, graph, x=rows, gain=norm.operands["weight"], prologue=prologue)


def _makes_norm(reader: OpNode, norm: OpNode) -> bool:
    """Return whether a node is a plain product of a float weight with the row of a norm."""
    if reader.op != "linear" or get_attributes(reader.launch).prologue != VALUES:
        return False
    x = reader.operands["x"]
    floats = reader.operands["weights"].spec.dtype in FLOATS
    whole = x.spec.is_dense and not x.spec.offset and x.spec.size == norm.spec.size
    row = x.spec.shape[-1] == norm.spec.shape[-1] and row_count(x.spec) <= MOST_COLUMNS
    alone = not adds(reader) or reader.operands["addend"].storage is not norm.node.storage
    return floats and whole and row and alone
