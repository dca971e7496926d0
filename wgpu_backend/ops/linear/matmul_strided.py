"""Products of plain types with any strides, sizes and batches: one thread per value."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(shader="ops/linear/matmul", trusted=True)
def matmul_strided(a: Node, x: Node) -> Launch:
    """Multiply rows of `x` with rows of `a`, of any length and strides.

    Parameters
    ----------
    a : (..., m, k), f32, f16 or bf16
        Leading axes divide those of `x`.
    x : (..., n, k)
        f32, f16 or bf16.

    Returns
    -------
    (..., n, m), f32: ``x @ a.T``.

    Raises
    ------
    ShapeError
        Row lengths differ, or leading axes do not divide.
    """
    require_rank("mulmat", "weight", a, 2)
    require_rank("mulmat", "x", x, 1)
    require_dtype("mulmat", "weight", a, FLOATS)
    require_dtype("mulmat", "x", x, FLOATS)
    m, k = a.spec.shape[-2:]
    require(
        x.spec.shape[-1] == k,
        ShapeError,
        f"mulmat: rows of x have {x.spec.shape[-1]} values, rows of weight have {k}",
    )
    shape = x.spec.shape if len(x.spec.shape) > 1 else (1, *x.spec.shape)
    batch, repeats = _batches(a.spec.shape[:-2], shape[:-2])
    out = Spec.dense((*x.spec.shape[:-1], m), F32)
    return Launch(
        out,
        {"a": a, "x": x},
        threads=out.size,
        params={
            "size": out.size,
            "m": m,
            "n": shape[-2],
            "k": k,
            "batch": pad_to_4d((*batch, 1, 1), 1),
            "repeats": pad_to_4d((*repeats, 1, 1), 1),
            "a_strides": pad_to_4d(a.spec.strides, 0),
            "x_strides": pad_to_4d(x.spec.strides, 0),
        },
        work=2 * out.size * k,
    )


@matmul_strided.reference
def matmul_strided_reference(a: Array, x: Array) -> Array:
    """Return ``x @ a.T``, batches of `a` repeated to those of `x`."""
    batch = a.shape[:-2]
    for axis, wanted in zip(range(-3, -3 - len(batch), -1), reversed(x.shape[:-2]), strict=False):
        a = np.repeat(a, wanted // a.shape[axis], axis=axis)
    return np.matmul(x, np.swapaxes(a, -1, -2)).reshape(*x.shape[:-1], a.shape[-2])


def _batches(a: Shape, x: Shape) -> tuple[Shape, Shape]:
    """Return the batch extents of x, and how often each batch of a repeats in it."""
    wide = (1,) * (2 - len(a)) + a, (1,) * (2 - len(x)) + x
    for have, want in zip(*wide, strict=True):
        require(
            have > 0 and want % have == 0,
            ShapeError,
            f"mulmat: weight has batch axes {a}, which do not divide those of x, {x}",
        )
    return wide[1], tuple(w // h for h, w in zip(*wide, strict=True))
