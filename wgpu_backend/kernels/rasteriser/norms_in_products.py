"""Norms that products compute from the sums of squares appended to their rows."""

from __future__ import annotations

from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.ops.check import FLOATS, row_count
from wgpu_backend.ops.linear.attributes import VALUES, Prologue, get_attributes
from wgpu_backend.ops.linear.normed import in_whole_groups, norm_weighted, weighted_spec
from wgpu_backend.ops.linear.rules import adds, again
from wgpu_backend.ops.linear.tiles import FEW


@norm_weighted.fuses("linear")
def norm_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm with the products that alone read it, if their kernel applies its factor.

    For many columns the saving would not be worth it.
    """
    norm = graph.producer(node.operands["x"], "rms_norm")
    if norm is None or not shuffles(graph.capabilities) or row_count(norm.spec) > FEW:
        return None
    if not norm.launch.choices["WEIGHTED"] or not in_whole_groups(norm):
        return None
    if not graph.serves_only(norm.node, lambda reader: _makes_norm(reader, norm)):
        return None
    shared = graph.shared(norm_weighted, norm.operands["x"], weight=norm.operands["weight"])
    rows = graph.view(shared, weighted_spec(node.operands["x"].spec))
    return again(node, graph, x=rows, prologue=Prologue(eps=norm.options["eps"]))


def _makes_norm(reader: OpNode, norm: OpNode) -> bool:
    """Return whether a node is a plain product of a float weight with the rows of a norm."""
    if reader.op != "linear" or get_attributes(reader.launch).prologue != VALUES:
        return False
    weight, x = reader.operands["weights"], reader.operands["x"]
    others = [weight, *([reader.operands["addend"]] if adds(reader) else [])]
    whole = x.spec.is_dense and not x.spec.offset and x.spec.size == norm.spec.size
    alone = all(other.storage is not norm.node.storage for other in others)
    fits = weight.spec.dtype in FLOATS and x.spec.shape[-1] == norm.spec.shape[-1]
    return fits and whole and alone
