"""Products of many columns in pairs of f16, where hardware has such arithmetic.

The rules apply where the caller allows activations to be rounded, and not to eight bits alone.
Values of x, and weights that are not f16 anyway, are rounded to eleven bits, and 32 products summed
with as many, before the sum goes into f32: an NMSE of up to 1e-6, where eight bits cost some 4e-5.
Each work group of a product would round the same values of x again, and groups of rows are many; so
where columns are, too, they are rounded once.
"""

from __future__ import annotations

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.gpu.f16_rounding import f16_activations
from wgpu_backend.kernels.gpu.linear import tiles_in_f16
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.ops.check import row_count
from wgpu_backend.ops.linear.attributes import VALUES, Prologue, get_attributes
from wgpu_backend.ops.linear.f16_groups import WEIGHTS, is_planar
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.rules import again

LEAST_COLUMNS = (
    128  # a dispatch more is 3 us, by which a product of 4096 x 4096 gains from there on
)


@linear.fuses("linear", name="linear_f16", exact=False)
def in_pairs(node: OpNode, graph: Graph) -> Node | None:
    """Multiply pairs of f16 in a product of many columns."""
    found, weight = get_attributes(node.launch), node.operands["weights"]
    dtype, n = weight.spec.dtype, row_count(node.operands["x"].spec)
    if found.precision != "default" or found.prologue != VALUES or n <= COLUMNS or dtype == F32:
        return None
    if not tiles_in_f16(graph.capabilities):
        return None
    return again(node, graph, precision="f16")


@linear.fuses("linear", name="linear_f16_once", exact=False)
def rounded_once(node: OpNode, graph: Graph) -> Node | None:
    """Round the columns of a product once to f16, if there are enough to pay for a dispatch."""
    found, x = get_attributes(node.launch), node.operands["x"]
    dtype = node.operands["weights"].spec.dtype
    if found.precision != "f16" or found.prologue != VALUES or dtype not in WEIGHTS:
        return None
    if len(x.spec.shape) > 2 or row_count(x.spec) < LEAST_COLUMNS:
        return None
    rounded = graph.shared(f16_activations, x, planar=is_planar(dtype), nibbles=False)
    return again(node, graph, x=rounded, prologue=Prologue("f16"))
