"""Fusion rules that join the gate and up-projection of chosen experts in one product."""

from __future__ import annotations

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.linear.epilogue_rules import ACTIVATIONS
from wgpu_backend.ops.linear.gates import lies_whole
from wgpu_backend.ops.moe.expert_tiles import rebuild_product
from wgpu_backend.ops.moe.experts import NAME, is_bare, linear_by_expert


@linear_by_expert.fuses(*ACTIVATIONS, name="linear_by_expert_gated")
def gate_and_projection(node: OpNode, graph: Graph) -> Node | None:
    """Fuse products of few tokens whose weights are neighbours, per expert or as a whole."""
    a, b = (node.operands[name] for name in "ab")
    # Gates and projections are halves of the rows of one matrix.
    if a.storage is b.storage:
        return _halves(node, graph)
    gate, up = (graph.single_use_producer(x, NAME) for x in (a, b))
    if gate is None or up is None or not all(is_bare(found.launch) for found in (gate, up)):
        return None
    given, other = (found.arguments("weights", "x", "ids") for found in (gate, up))
    weights = _neighbours(given[0], other[0])
    if weights is None or not all(map(_alike, given[1:], other[1:])):
        return None
    return rebuild_product(gate, graph, weights=weights, activation=ACTIVATIONS[node.op])


def _halves(node: OpNode, graph: Graph) -> Node | None:
    """Find the two halves of one product's rows, if nothing else reads that product."""
    a, b = (node.operands[name] for name in "ab")
    *rows, m = a.spec.shape
    whole = Spec.dense((*rows, 2 * m), F32)
    parts = [Spec(a.spec.shape, F32, whole.strides, offset) for offset in (0, m)]
    found = graph.producer(Node(whole, a.storage), NAME)
    if found is None or not is_bare(found.launch) or [a.spec, b.spec] != parts:
        return None
    if not lies_whole(found.operands["weights"]) or not graph.read_by(a.storage, node):
        return None
    return rebuild_product(found, graph, activation=ACTIVATIONS[node.op])


def _alike(a: Node, b: Node) -> bool:
    return a.storage is b.storage and a.spec == b.spec


def _neighbours(a: Node, b: Node) -> Node | None:
    """Return adjacent weights as one with another axis; None if they are not adjacent."""
    spec = a.spec
    if a.storage is not b.storage or spec.shape != b.spec.shape or len(spec.shape) != 3:
        return None
    if not spec.is_dense or spec.offset + spec.size != b.spec.offset or not lies_whole(a):
        return None
    dense = Spec.dense((2, *spec.shape), spec.dtype)
    return Node(Spec(dense.shape, spec.dtype, dense.strides, spec.offset), a.storage)
