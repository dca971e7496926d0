"""Views of nodes, for ops that are made of other ops."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides


def viewed(node: Node, spec: Spec) -> Node:
    """View the storage of a node with another spec; a weight's view has no context either."""
    if node.builder is None:
        return Node(spec, node.storage, source=node)
    return node.builder.view(node, spec)


def reshaped(node: Node, shape: Sequence[int]) -> Node | None:
    """View a node in another shape; return None where it needs a copy."""
    found = specs.reshape(node.spec, shape)
    return viewed(node, found) if found else None


def permuted(node: Node, *order: int) -> Node:
    """View a node with its axes permuted: axis ``order[i]`` becomes axis i."""
    return viewed(node, specs.permute(node.spec, order))


def expanded(node: Node, shape: Shape) -> Node:
    """View a node with axes of one value repeated, as broadcasting does."""
    spec = node.spec
    if spec.shape == shape:
        return node
    return viewed(node, Spec(shape, spec.dtype, broadcast_strides(spec, shape), spec.offset))
