"""Fusion rules by which products round their results, if only the next product reads them.

A kernel can do that if one work group makes all 32 rows of a column that form a group.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.linear.attributes import SUMS, Epilogue, Form, get_attributes
from wgpu_backend.ops.linear.epilogue_rules import adds, rebuild_product
from wgpu_backend.ops.linear.gates import lies_whole
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.normed import GROUP
from wgpu_backend.ops.linear.portable import storage_bindings

# What rounding ops make, of bytes.
_BYTES: dict[str, Form] = {
    "q8_activations": "q8",
    "q8_weighted": "q8",
    "q16_activations": "q16",
    "q16_weighted": "q16",
}


@linear.fuses("f16_activations", name="linear_gated_f16", exact=False)
@linear.fuses("q16_activations", name="linear_gated_q16", exact=False)
@linear.fuses("q8_activations", name="linear_gated_q8", exact=False)
def rounded_gate_and_projection(node: OpNode, graph: Graph) -> Node | None:
    """Round the result of a gated product that only products with rounded activations read."""
    found = graph.single_use_producer(node.operands["x"], "linear")
    if found is None or adds(found) or not _fits(found, node):
        return None
    epilogue = get_attributes(found.launch).epilogue
    if epilogue != Epilogue(epilogue.activation) or epilogue == SUMS:
        return None
    return rebuild_product(found, graph, epilogue=_rounding(epilogue, node))


@linear.fuses("f16_weighted", name="linear_add_f16", exact=False)
@linear.fuses("q16_weighted", name="linear_add_q16", exact=False)
@linear.fuses("q8_weighted", name="linear_add_q8", exact=False)
def rounded_sum(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a residual sum with the weighted rows from which a product makes the norm."""
    found = graph.producer(node.operands["x"], "linear")
    if found is None or not adds(found) or not _fits(found, node):
        return None
    # Of its sums and of the weight of the norm.
    bindings = storage_bindings(found.launch) + 2
    if bindings > graph.capabilities.max_storage_bindings:
        return None
    if get_attributes(found.launch).epilogue != SUMS or not graph.can_defer_write(
        found, found.node
    ):
        return None
    total = Node(found.spec, found.node.storage)
    epilogue = _rounding(Epilogue(norm=True), node)
    return rebuild_product(
        found, graph, scale=node.operands["weight"], total=total, epilogue=epilogue
    )


def _fits(found: OpNode, node: OpNode) -> bool:
    """Return whether a product has rounded activations, and whole groups to round."""
    prologue = get_attributes(found.launch).prologue
    rounded = prologue.form != "values" and prologue.parts == 1
    # A group of results must not be split over the parts of a weight.
    whole = lies_whole(found.operands["weights"]) and found.spec.shape[-1] % GROUP == 0
    return rounded and whole and found.spec.shape == node.operands["x"].spec.shape


def _rounding(epilogue: Epilogue, node: OpNode) -> Epilogue:
    """Return an epilogue that rounds as a rounding op does."""
    form: Form = "f16_nibbles" if node.options.get("nibbles") else "f16"
    if node.op in _BYTES:
        form = _BYTES[node.op]
    return replace(epilogue, form=form, planar=bool(node.options.get("planar")))
