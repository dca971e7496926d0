"""Views inside ops that are made of other ops; what `Tensor` offers its users, for nodes."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.errors import ContextError
from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.copying import contiguous


def viewed(x: Node, spec: Spec) -> Node:
    """View of `x` with another spec."""
    if x.builder is None:
        label = x.storage.label
        raise ContextError(
            f"{label}: a weight belongs to no context; use a tensor of one beside it"
        )
    return x.builder.view(x, spec)


def reshaped(x: Node, shape: Sequence[int]) -> Node:
    """`x` under another shape, copied where its strides demand it."""
    found = specs.reshape(x.spec, shape)
    return viewed(x, found) if found else reshaped(contiguous(x), shape)


def permuted(x: Node, order: Sequence[int]) -> Node:
    """View with the axes in another order, as NumPy's transpose."""
    return viewed(x, specs.permute(x.spec, order))


def swapped(x: Node, axis: int) -> Node:
    """View with an axis and the last one exchanged; done twice it is `x` again."""
    order = list(range(len(x.spec.shape)))
    order[axis], order[-1] = order[-1], order[axis]
    return permuted(x, order)
