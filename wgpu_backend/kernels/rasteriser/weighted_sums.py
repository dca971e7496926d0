"""Residuals that leave weighted by the norm that follows, with their squares, from their product.

A work group of a rasteriser makes 64 rows of a column, whose squares are one number, and its lanes
shuffle theirs. A rule writes this epilogue where nothing but products reads the norm.
"""

from __future__ import annotations

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.rasteriser.textures import lies_in_texture
from wgpu_backend.ops.check import FLOATS
from wgpu_backend.ops.linear.attributes import SUMS, Epilogue, get_attributes
from wgpu_backend.ops.linear.gates import lies_whole
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.rules import adds, again
from wgpu_backend.ops.linear.tiles import FEW


@linear.fuses("norm_weighted", name="linear_add_weighted")
def weighted_sum(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a residual of few columns with the weighted rows from which products make the norm."""
    x = node.operands["x"]
    found = graph.producer(x, "linear")
    if found is None or found.spec.shape != x.spec.shape or not _fits(found, graph.capabilities):
        return None
    if not graph.can_defer_write(found, found.node):
        return None
    total = Node(found.spec, found.node.storage)
    scale, epilogue = node.operands["weight"], Epilogue(norm=True)
    return again(found, graph, scale=scale, total=total, epilogue=epilogue)


def _fits(product: OpNode, capabilities: Capabilities) -> bool:
    """Return whether a product's work groups make as many rows as share a sum of squares.

    For many columns they make fewer, since that is the faster.
    """
    weight, found = product.operands["weights"], get_attributes(product.launch)
    sums = adds(product) and found.epilogue == SUMS and found.prologue.form == "values"
    textured = weight.spec.dtype in FLOATS and lies_in_texture(
        product.launch, "weights", capabilities
    )
    return sums and textured and lies_whole(weight) and product.launch.count("n") <= FEW
