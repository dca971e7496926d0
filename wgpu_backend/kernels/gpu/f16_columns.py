"""Products of few columns in f16, for hardware that has it and no dot product of bytes.

The rules apply where the caller allows activations to be rounded, and not to eight bits alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wgpu_backend.dtypes import F16
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.gpu.f16_rounding import f16_activations, f16_weighted
from wgpu_backend.kernels.gpu.linear import multiplies_f16
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.ops.check import row_count
from wgpu_backend.ops.linear.attributes import VALUES, Prologue, get_attributes
from wgpu_backend.ops.linear.f16_groups import BESIDE_NIBBLES, NIBBLES, WEIGHTS, is_planar
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.normed import in_whole_groups
from wgpu_backend.ops.linear.rounding_rules import pays_in_q16
from wgpu_backend.ops.linear.rules import again


@linear.fuses("linear", name="linear_f16_groups", exact=False)
def few_in_f16(node: OpNode, graph: Graph) -> Node | None:
    """Round the activations of a product of few columns to f16, where that pays."""
    found, weight, x = get_attributes(node.launch), node.operands["weights"], node.operands["x"]
    if found.precision != "default" or found.prologue != VALUES or len(x.spec.shape) > 2:
        return None
    if not _pays(weight, row_count(x.spec), graph.capabilities):
        return None
    dtype = weight.spec.dtype
    how = {"planar": is_planar(dtype), "nibbles": True}
    shares = dtype in BESIDE_NIBBLES and graph.is_shared(f16_activations, x, **how)
    nibbles = dtype in NIBBLES or shares
    rounded = graph.shared(f16_activations, x, planar=is_planar(dtype), nibbles=nibbles)
    return again(node, graph, x=rounded, prologue=Prologue("f16_nibbles" if nibbles else "f16"))


def _pays(weight: Node, columns: int, capabilities: Capabilities) -> bool:
    """Return whether f16 is faster than f32, and than bytes."""
    dtype = weight.spec.dtype
    if pays_in_q16(dtype, columns, capabilities):
        return False
    # A sum of eight products has to be scaled for each column, which f32 is as fast as; GPUs that
    # multiply packed bytes also multiply f16 by f32.
    floats = 0 if capabilities.integer_dot else 1
    most = floats if dtype == F16 else COLUMNS
    return dtype in WEIGHTS and 0 < columns <= most and multiplies_f16(capabilities)


@f16_weighted.fuses("linear", exact=False)
def norm_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm with its rounding to f16; the product applies the norm's factor."""
    prologue = get_attributes(node.launch).prologue
    bare = prologue.in_f16 and prologue.eps is None
    rounded = graph.producer(node.operands["x"], "f16_activations") if bare else None
    norm = rounded and graph.producer(rounded.operands["x"], "rms_norm")
    if rounded is None or norm is None or not in_whole_groups(norm):
        return None
    x = graph.view(_scale_rows(norm, graph, rounded.options), node.operands["x"].spec)
    return again(node, graph, x=x, prologue=replace(prologue, eps=norm.call.kwargs["eps"]))


def _scale_rows(norm: OpNode, graph: Graph, layout: Mapping[str, Any]) -> Node:
    """Return rows that lack the factor of a norm."""
    x = norm.operands["x"]
    if norm.launch.choices["WEIGHTED"]:
        return graph.shared(f16_weighted, x, weight=norm.operands["weight"], **layout)
    return graph.shared(f16_activations, x, **layout)
