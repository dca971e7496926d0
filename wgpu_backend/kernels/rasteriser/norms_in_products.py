"""Fusion rules that join norms with the products around them.

A product computes the factor of a norm from the sums of squares appended to its rows. A residual
leaves the product that makes it weighted by the norm that follows, with its squares: a work group
makes 64 rows of a column, whose squares are one number, and its lanes shuffle theirs. The rules
apply where nothing but products reads the norm.
"""

from __future__ import annotations

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.kernels.rasteriser.textures import lies_in_texture
from wgpu_backend.ops.check import FLOATS, row_count
from wgpu_backend.ops.linear.attributes import SUMS, VALUES, Epilogue, Prologue, get_attributes
from wgpu_backend.ops.linear.epilogue_rules import adds, rebuild_product
from wgpu_backend.ops.linear.gates import lies_whole
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.normed import in_whole_groups, norm_weighted, weighted_spec
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
    return rebuild_product(node, graph, x=rows, prologue=Prologue(eps=norm.options["eps"]))


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


@linear.fuses("norm_weighted", name="linear_add_weighted")
def weighted_sum(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a residual of few columns with its weighting by the norm of the next products."""
    x = node.operands["x"]
    found = graph.producer(x, "linear")
    if found is None or found.spec.shape != x.spec.shape or not _fits(found, graph.capabilities):
        return None
    if not graph.can_defer_write(found, found.node):
        return None
    total = Node(found.spec, found.node.storage)
    scale, epilogue = node.operands["weight"], Epilogue(norm=True)
    return rebuild_product(found, graph, scale=scale, total=total, epilogue=epilogue)


def _fits(product: OpNode, capabilities: Capabilities) -> bool:
    """Return whether a work group of the product covers the rows that share a sum of squares.

    For many columns they make fewer, since that is the faster.
    """
    weight, found = product.operands["weights"], get_attributes(product.launch)
    sums = adds(product) and found.epilogue == SUMS and found.prologue.form == "values"
    textured = weight.spec.dtype in FLOATS and lies_in_texture(
        product.launch, "weights", capabilities
    )
    return sums and textured and lies_whole(weight) and product.launch.count("n") <= FEW
