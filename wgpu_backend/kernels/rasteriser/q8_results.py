"""Results of products in eight bits leave in eight bits, where only the next product reads them.

A work group of a rasteriser makes 32 rows of a column, which is a group, and its lanes shuffle the
rest.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.ops.linear.attributes import SUMS, Epilogue, attributes_of
from wgpu_backend.ops.linear.gates import lies_whole
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.rules import adds, again
from wgpu_backend.ops.rounding.q8 import GROUP


@linear.fuses("q8_activations", name="linear_gated_q8", exact=False)
def rounded_gate_and_projection(node: OpNode, graph: Graph) -> Node | None:
    """A gated product that only products with rounded activations read."""
    found = graph.single_use_producer(node.operands["x"], "linear")
    if found is None or adds(found) or not _fits(found, node, graph):
        return None
    epilogue = attributes_of(found.launch).epilogue
    if epilogue != Epilogue(epilogue.activation) or epilogue == SUMS:
        return None
    return again(found, graph, epilogue=replace(epilogue, rounded=True))


@linear.fuses("q8_weighted", name="linear_add_q8", exact=False)
def rounded_sum(node: OpNode, graph: Graph) -> Node | None:
    """A residual, and the weighted rows of which a product that normalises makes the norm."""
    found = graph.producer(node.operands["x"], "linear")
    if found is None or not adds(found) or not _fits(found, node, graph):
        return None
    if attributes_of(found.launch).epilogue != SUMS or not graph.can_defer_write(found, found.node):
        return None
    total = Node(found.spec, found.node.storage)
    epilogue = Epilogue(norm=True, rounded=True)
    scale = node.operands["weight"]
    return again(found, graph, scale=scale, total=total, epilogue=epilogue)


def _fits(found: OpNode, node: OpNode, graph: Graph) -> bool:
    """Whether work groups make groups of what is rounded, of activations that are."""
    rounded = attributes_of(found.launch).prologue.form == "q8"
    whole = lies_whole(found.operands["weights"]) and found.spec.shape[-1] % GROUP == 0
    same = found.spec.shape == node.operands["x"].spec.shape and not node.options.get("planar")
    return rounded and shuffles(graph.capabilities) and whole and same
