"""Reshaping helpers for ops that are made of other ops; strided nodes are copied if necessary."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.views import make_view


def reshape_node(x: Node, shape: Sequence[int]) -> Node:
    """Reshape `x`, as a view where its strides allow."""
    found = specs.reshape(x.spec, shape)
    return make_view(x, found) if found else reshape_node(contiguous(x), shape)


def swap_last(x: Node, axis: int) -> Node:
    """Swap an axis with the last one, as a view; done twice it is `x` again."""
    order = list(range(len(x.spec.shape)))
    order[axis], order[-1] = order[-1], order[axis]
    return make_view(x, specs.permute(x.spec, order))
