"""Fusion rules that make a sum or a gate the epilogue of a product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.elementwise.activation import GATED
from wgpu_backend.ops.linear.attributes import SUMS, get_attributes
from wgpu_backend.ops.linear.gates import fits_gated
from wgpu_backend.ops.linear.linear import linear

# Activations of the gate, by the name of the op that multiplies by it.
ACTIVATIONS = {gated.name: name for name, gated in GATED.items()}


def rebuild_product(product: OpNode, graph: Graph, **changes: Any) -> Node:  # noqa: ANN401
    """Rebuild a product with other operands, prologue, epilogue or precision.

    Parameters
    ----------
    product : OpNode
        By `linear`.
    changes : Node, Prologue, Epilogue or str
        Arguments of `linear` by their names.
    """
    operands, found = product.operands, get_attributes(product.launch)
    given: dict[str, Any] = {
        "weight": operands["weights"],
        "x": operands["x"],
        "prologue": found.prologue,
        "epilogue": found.epilogue,
        "precision": found.precision,
    }
    given |= {name: operands[name] for name in ("scale", "total", "gain") if name in operands}
    if adds(product):
        given["addend"] = operands["addend"]
    return graph.call(linear, **given | changes)


def adds(product: OpNode) -> bool:
    """Return whether a product adds something to its sums."""
    return bool(product.launch.choices.get("ADDS"))


def is_bare(product: OpNode) -> bool:
    """Return whether a product stores its sums as they are, with default precision."""
    found = get_attributes(product.launch)
    return found.epilogue == SUMS and found.precision != "full" and not adds(product)


@linear.fuses("add", name="linear_add")
def sum_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a product with a bias, or a residual, if nothing else reads the product."""
    # Sums commute, so the product may be either operand.
    for product, addend in (("a", "b"), ("b", "a")):
        found, other = (
            graph.single_use_producer(node.operands[product], "linear"),
            node.operands[addend],
        )
        if found is None or not is_bare(found) or other.spec.dtype != F32:
            continue
        # A residual, or a bias.
        if other.spec.shape in (found.spec.shape, found.spec.shape[-1:]):
            return rebuild_product(found, graph, addend=other)
    return None


@linear.fuses(*ACTIVATIONS, name="linear_gated")
def gate_and_projection(node: OpNode, graph: Graph) -> Node | None:
    """Fuse products of one input with their gated activation, if their weights are adjacent."""
    gate, up = (graph.single_use_producer(node.operands[name], "linear") for name in "ab")
    # A bias of either would have to be applied before the activation, where the kernel has no place
    # for it.
    if gate is None or up is None or not is_bare(gate) or adds(up):
        return None
    x, other = gate.operands["x"], up.operands["x"]
    same = _alike(x, other) and _alike(gate.operands.get("gain"), up.operands.get("gain"))
    found = get_attributes(gate.launch)
    weight = _neighbours(gate.operands["weights"], up.operands["weights"])
    if not same or found != get_attributes(up.launch) or weight is None or not fits_gated(weight):
        return None
    epilogue = replace(found.epilogue, activation=ACTIVATIONS[node.op])
    return rebuild_product(gate, graph, weight=weight, epilogue=epilogue)


def _alike(a: Node | None, b: Node | None) -> bool:
    """Return whether two operands are the same view, or both are absent."""
    if a is None or b is None:
        return a is b
    return a.storage is b.storage and a.spec == b.spec


def _neighbours(a: Node, b: Node) -> Node | None:
    """Return two adjacent matrices as one; None if they are not adjacent."""
    spec = a.spec
    if a.storage is not b.storage or spec.shape != b.spec.shape:
        return None
    # The gate's rows come first: `Model.fused_weights` stores them so.
    if spec.offset + spec.size != b.spec.offset:
        return None
    shape = (2 * spec.shape[0], *spec.shape[1:])
    return Node(Spec(shape, spec.dtype, spec.strides, spec.offset), a.storage)
