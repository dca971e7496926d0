"""Outer products, made of `matmul`."""

from __future__ import annotations

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.linear.products import matmul
from wgpu_backend.ops.shape.views import make_view, permute


def out_prod(a: Node, b: Node) -> Node:
    """Sum the outer products of the rows of two tensors, in f32: ``aᵀ b``.

    Parameters
    ----------
    a : (..., k, n) or (n,), f32, f16 or bf16
    b : (..., k, m) or (m,), f32, f16 or bf16
        Vectors are one row.

    Returns
    -------
    (..., n, m), f32
        Leading axes broadcast.

    Raises
    ------
    ShapeError
        The numbers of rows differ, or leading axes do not broadcast.
    """
    for name, node in (("a", a), ("b", b)):
        require_rank("out_prod", name, node, 1)
        require_dtype("out_prod", name, node, FLOATS)
    left, right = _as_rows(a), _as_rows(b)
    require(
        left.spec.shape[-2] == right.spec.shape[-2],
        ShapeError,
        f"out_prod: a is {a.spec.shape}, b is {b.spec.shape}; a has {left.spec.shape[-2]} rows, b "
        f"has {right.spec.shape[-2]}",
    )
    axes = range(len(left.spec.shape))
    return matmul(permute(left, *axes[:-2], axes[-1], axes[-2]), right)


def _as_rows(x: Node) -> Node:
    spec = x.spec
    if len(spec.shape) > 1:
        return x
    return make_view(x, Spec((1, *spec.shape), spec.dtype, (0, *spec.strides), spec.offset))
