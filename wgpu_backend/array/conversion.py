"""Nodes in another type or shape, with any number of axes."""

from __future__ import annotations

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.shape.copying import cast
from wgpu_backend.ops.shape.shapes import reshaped

MOST_AXES = 4  # of an operand of a kernel


def converted(x: Node, dtype: DType) -> Node:
    """A node in another type; itself where it has that type already."""
    if x.spec.dtype == dtype:
        return x
    if x.spec.dtype.quantised or len(x.spec.shape) <= MOST_AXES:
        return cast(x, dtype=dtype)
    return reshaped(cast(flat(x), dtype=dtype), x.spec.shape)


def flat(x: Node) -> Node:
    """All values in a row."""
    return reshaped(x, (x.spec.size,))
