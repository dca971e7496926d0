"""Norms that the products behind them make, from the squares beside their rows."""

from __future__ import annotations

from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.check import FLOATS, row_count
from wgpu_backend.ops.normed import in_whole_groups, norm_weighted, weighted_spec
from wgpu_backend.ops.op import find
from wgpu_backend.ops.tiles import FEW

PRODUCTS = ("mulmat", "mulmat_full_prec", "mulmat_add", "mulmat_gated")


@norm_weighted.fuses(*PRODUCTS)
def norm_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """A product of a norm that products alone read, where their kernel makes up for its factor.

    Of many columns a norm of its own costs nothing that would be worth that.
    """
    norm = graph.producer(node.operands["x"], "rms_norm")
    if norm is None or not graph.capabilities.telling_lanes or row_count(norm.spec) > FEW:
        return None
    if not norm.launch.choices["WEIGHTED"] or not in_whole_groups(norm):
        return None
    if not graph.serves_only(norm.node, lambda reader: _makes_norm(reader, norm)):
        return None
    weight, x, *rest = _operands(node)
    shared = graph.shared(norm_weighted, norm.operands["x"], weight=norm.operands["weight"])
    rows = graph.view(shared, weighted_spec(x.spec))
    eps = norm.options["eps"]
    return graph.call(find(node.op), weight, rows, *rest, **node.options, eps=eps)


def _makes_norm(reader: OpNode, norm: OpNode) -> bool:
    """Whether a node is a product of weights in floats with the rows of a norm, and no more."""
    if reader.op not in PRODUCTS or "weights" not in reader.operands:
        return False
    weight, x, *rest = _operands(reader)
    fits = weight.spec.dtype in FLOATS and "NORMED" not in reader.launch.choices
    whole = x.spec.is_dense and not x.spec.offset and x.spec.size == norm.spec.size
    alone = all(other.storage is not norm.node.storage for other in (weight, *rest))
    return fits and whole and alone and x.spec.shape[-1] == norm.spec.shape[-1]


def _operands(product: OpNode) -> list[Node]:
    """Weight and rows of a product, and what it adds."""
    names = ["weights", "x", *(["addend"] if product.launch.choices.get("ADDS") else [])]
    return [product.operands[name] for name in names]
