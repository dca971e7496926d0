"""Views of nodes, for ops that are made of other ops."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides


def make_view(node: Node, spec: Spec) -> Node:
    """View the storage of a node with another spec; a weight's view has no context either."""
    if node.builder is None:
        return Node(spec, node.storage, source=node)
    return node.builder.view(node, spec)


def try_reshape(node: Node, shape: Sequence[int]) -> Node | None:
    """View a node in another shape; return None where it needs a copy."""
    found = specs.reshape(node.spec, shape)
    return make_view(node, found) if found else None


def permute(node: Node, *order: int) -> Node:
    """View a node with its axes permuted: axis ``order[i]`` becomes axis i."""
    return make_view(node, specs.permute(node.spec, order))


def expand(node: Node, shape: Shape) -> Node:
    """View a node with axes of one value repeated, as broadcasting does."""
    spec = node.spec
    if spec.shape == shape:
        return node
    return make_view(node, Spec(shape, spec.dtype, broadcast_strides(spec, shape), spec.offset))
