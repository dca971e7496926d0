"""Products of many columns in pairs of f16, where hardware has such arithmetic.

The rule applies where the caller allows activations to be rounded, and not to eight bits alone.
Values of x, and weights that
are not f16 anyway, are rounded to eleven bits, and 32 products summed with as many, before the sum
goes into f32: an NMSE of up to 1e-6, where eight bits cost some 4e-5.
"""

from __future__ import annotations

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.gpu.linear import multiplies_f16
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.ops.check import row_count
from wgpu_backend.ops.linear.attributes import VALUES, attributes_of
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.rules import again


@linear.fuses("linear", name="linear_f16", exact=False)
def in_pairs(node: OpNode, graph: Graph) -> Node | None:
    """A product of many columns."""
    found, weight = attributes_of(node.launch), node.operands["weights"]
    dtype, n = weight.spec.dtype, row_count(node.operands["x"].spec)
    if found.precision != "default" or found.prologue != VALUES or n <= COLUMNS or dtype == F32:
        return None
    if not multiplies_f16(graph.capabilities):
        return None
    return again(node, graph, precision="f16")
