"""Norms that the products behind them make, from the squares beside their rows."""

from __future__ import annotations

from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.ops.check import FLOATS, row_count
from wgpu_backend.ops.linear.attributes import VALUES, Prologue, attributes_of
from wgpu_backend.ops.linear.normed import in_whole_groups, norm_weighted, weighted_spec
from wgpu_backend.ops.linear.rules import adds, again
from wgpu_backend.ops.linear.tiles import FEW


@norm_weighted.fuses("linear")
def norm_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """A product of a norm that products alone read, where their kernel makes up for its factor.

    Of many columns a norm of its own costs nothing that would be worth that.
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
    """Whether a node is a product of weights in floats with the rows of a norm, and no more."""
    if reader.op != "linear" or attributes_of(reader.launch).prologue != VALUES:
        return False
    weight, x = reader.operands["weights"], reader.operands["x"]
    others = [weight, *([reader.operands["addend"]] if adds(reader) else [])]
    whole = x.spec.is_dense and not x.spec.offset and x.spec.size == norm.spec.size
    alone = all(other.storage is not norm.node.storage for other in others)
    fits = weight.spec.dtype in FLOATS and x.spec.shape[-1] == norm.spec.shape[-1]
    return fits and whole and alone
