"""Nodes in another type or shape, with any number of axes."""

from __future__ import annotations

from wgpu_backend.dtypes import BOOL, COMPLEX64, F32, DType
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.elementwise.comparison import logical_or
from wgpu_backend.ops.shape.copying import cast, concat
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import make_view

# Axes of an operand of a kernel: shapes and strides are passed as vectors of four.
MOST_AXES = 4


def convert(x: Node, dtype: DType) -> Node:
    """Return a node in another type; itself if it has that type already."""
    if x.spec.dtype == dtype:
        return x
    # A complex number is true where one of its parts is not 0.
    if x.spec.dtype == COMPLEX64 and dtype == BOOL:
        truths = [convert(view_part(x, which), BOOL) for which in (0, 1)]
        if len(x.spec.shape) <= MOST_AXES:
            return logical_or(*truths)
        return reshape_node(logical_or(*map(flatten_node, truths)), x.spec.shape)
    if x.spec.dtype.quantised or len(x.spec.shape) <= MOST_AXES:
        return cast(x, dtype=dtype)
    return reshape_node(cast(flatten_node(x), dtype=dtype), x.spec.shape)


def flatten_node(x: Node) -> Node:
    """Return all values in a row."""
    return reshape_node(x, (x.spec.size,))


def view_part(x: Node, which: int) -> Node:
    """Return a view of the real (0) or imaginary (1) parts of complex64."""
    # A complex number is two neighbouring floats, real part first: strides count floats here.
    strides = tuple(2 * s for s in x.spec.strides)
    return make_view(x, Spec(x.spec.shape, F32, strides, 2 * x.spec.offset + which))


def join_parts(real: Node, imag: Node) -> Node:
    """Return complex64 of real and imaginary parts, both float32 and of one shape."""
    size = real.spec.size
    pairs = concat(reshape_node(real, (size, 1)), reshape_node(imag, (size, 1)), axis=1)
    # (size, 2) of floats has the bytes of `size` complex numbers: the view costs nothing.
    return make_view(pairs, Spec.dense(real.spec.shape, COMPLEX64))
