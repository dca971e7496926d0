"""Products of matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.core import wrap
from wgpu_backend.array.lifting import MOST_AXES, converted, floating, promoted
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec, broadcast
from wgpu_backend.ops.linear import products
from wgpu_backend.ops.shape.shapes import reshaped
from wgpu_backend.ops.shape.views import expanded

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def matmul(a: Any, b: Any, /) -> Array:
    """Matrix product as ``numpy.matmul``; leading axes broadcast, sums are in float32.

    Parameters
    ----------
    a : (..., n, k) or (k,), any numbers
    b : (..., k, m) or (k,), any numbers

    Returns
    -------
    (..., n, m), of the type both are promoted to
        Integers are multiplied in float32, exact up to sums of 2²⁴.
    """
    left, right = promoted("matmul", a, b)
    kind = left.spec.dtype
    return wrap(converted(product(floating(left), floating(right)), kind))


def product(a: Node, b: Node) -> Node:
    """Matrix product of nodes of floats with any number of leading axes, f32."""
    if max(len(a.spec.shape), len(b.spec.shape)) <= MOST_AXES:
        return products.matmul(a, b)
    batch = broadcast("matmul", _leading(a), _leading(b))
    count = math.prod(batch)
    rows = reshaped(expanded(a, (*batch, *a.spec.shape[-2:])), (count, *a.spec.shape[-2:]))
    cols = reshaped(expanded(b, (*batch, *b.spec.shape[-2:])), (count, *b.spec.shape[-2:]))
    y = products.matmul(rows, cols)
    return reshaped(y, (*batch, *y.spec.shape[1:]))


def _leading(x: Node) -> Spec:
    if len(x.spec.shape) < 2:
        raise ShapeError(f"matmul: {x.spec.shape} beside a batch, needs at least 2 axes")
    return Spec.dense(x.spec.shape[:-2], F32)
