"""Views of nodes, for ops that are made of other ops."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides


def viewed(node: Node, spec: Spec) -> Node:
    """Node that looks at the storage of another; a weight's view belongs to no context either."""
    if node.builder is None:
        return Node(spec, node.storage, source=node)
    return node.builder.view(node, spec)


def reshaped(node: Node, shape: Sequence[int]) -> Node | None:
    """View of a node under another shape, or None where it needs a copy."""
    found = specs.reshape(node.spec, shape)
    return viewed(node, found) if found else None


def permuted(node: Node, *order: int) -> Node:
    """View with the axes in another order: axis ``order[i]`` becomes axis i."""
    return viewed(node, specs.permute(node.spec, order))


def expanded(node: Node, shape: Shape) -> Node:
    """View that repeats a node along axes of one value, as broadcasting does."""
    spec = node.spec
    if spec.shape == shape:
        return node
    return viewed(node, Spec(shape, spec.dtype, broadcast_strides(spec, shape), spec.offset))
