"""Ops on triangular and diagonal matrices: tri, tril, triu, diag, solve_tri."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast, broadcast_strides
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require, require_dtype, require_rank, vec4s
from wgpu_backend.ops.index.bits import moving, require_plain
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.shapes import swap_last

# Diagonals are i32 in the shader.
FAR = 2**31 - 1
# Lowest and highest column - row that is kept.
# In the order of ggml's `ggml_tri_type`.
KINDS = {0: (0, FAR), 1: (1, FAR), 2: (-FAR, 0), 3: (-FAR, -1)}


@op(dense=("x",), trusted=True)
def tri(x: Node, kind: int) -> Launch:
    """Copy the triangle of each matrix, with zeros elsewhere.

    Parameters
    ----------
    x : (..., rows, cols)
        Any plain dtype.
    kind : int
        0 keeps what lies above the diagonal and the diagonal, 1 what lies above it, 2 what lies
        below it and the diagonal, 3 what lies below it.

    Returns
    -------
    Like `x`, dense.

    Raises
    ------
    ShapeError
        There is no such kind, or `x` is no matrix.
    """
    require_rank("tri", "x", x, 2)
    require_plain("tri", "x", x)
    require(kind in KINDS, ShapeError, f"tri: kind is {kind}, needs 0 to {len(KINDS) - 1}")
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    rows, cols = x.spec.shape[-2:]
    lowest, highest = KINDS[kind]
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params={
            "size": out.size,
            "rows": rows,
            "cols": cols,
            "lowest": lowest,
            "highest": highest,
        },
        choices=moving(out.dtype, "x"),
        work=2 * out.nbytes,
    )


@tri.reference
def tri_reference(x: Array, kind: int) -> Array:
    """Copy the triangle of each matrix."""
    return np.triu(x, kind) if kind < 2 else np.tril(x, 2 - kind)


@op(shader="ops/shape/tri", dense=("x",), trusted=True)
def band(x: Node, *, lowest: int, highest: int) -> Launch:
    """Copy diagonals of each matrix, with zeros elsewhere; see `tril`.

    Parameters
    ----------
    x : (..., rows, cols)
        Up to eight axes, any plain dtype.
    lowest, highest : int
        Column less row of what is kept.

    Returns
    -------
    Like `x`, dense.
    """
    require_rank("band", "x", x, 2, 8)
    require_plain("band", "x", x)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    rows, cols = x.spec.shape[-2:]
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params={
            "size": out.size,
            "rows": rows,
            "cols": cols,
            "lowest": max(-FAR, min(lowest, FAR)),
            "highest": max(-FAR, min(highest, FAR)),
        },
        choices=moving(out.dtype, "x"),
        work=2 * out.nbytes,
    )


@band.reference
def band_reference(x: Array, *, lowest: int, highest: int) -> Array:
    """Copy diagonals of each matrix."""
    places: Array = np.indices(x.shape[-2:])
    side = places[1] - places[0]
    return np.where((side >= lowest) & (side <= highest), x, np.zeros((), x.dtype))


def tril(x: Node, k: int = 0) -> Node:
    """Copy the lower triangle of each matrix, with zeros elsewhere.

    Parameters
    ----------
    x : (..., rows, cols)
        Up to eight axes, any plain dtype.
    k : int
        Last diagonal that is kept: 0 is the main one, above 0 they lie above it.

    Returns
    -------
    Like `x`, dense.
    """
    return band(x, lowest=-FAR, highest=k)


def triu(x: Node, k: int = 0) -> Node:
    """Copy the upper triangle of each matrix, with zeros elsewhere; see `tril`.

    Parameters
    ----------
    x : (..., rows, cols)
        Up to eight axes, any plain dtype.
    k : int
        First diagonal that is kept.

    Returns
    -------
    Like `x`, dense.
    """
    return band(x, lowest=k, highest=FAR)


@op(dense=("x",), trusted=True)
def diag(x: Node) -> Launch:
    """Make matrices with vectors on their diagonals.

    Parameters
    ----------
    x : (..., n)
        Up to three axes, any plain dtype.

    Returns
    -------
    (..., n, n), of the dtype of `x`.
    """
    require_rank("diag", "x", x, 1, 3)
    require_plain("diag", "x", x)
    out = Spec.dense((*x.spec.shape, x.spec.shape[-1]), x.spec.dtype)
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params={"size": out.size, "n": x.spec.shape[-1]},
        choices=moving(out.dtype, "x"),
        work=2 * out.nbytes,
    )


@diag.reference
def diag_reference(x: Array) -> Array:
    """Make matrices with vectors on their diagonals."""
    on = np.eye(x.shape[-1], dtype=bool)
    # A product with the mask would give -0 and NaN.
    return np.where(on, x[..., None], np.zeros((), x.dtype))


@op(trusted=True)
def solve_columns(a: Node, b: Node, *, lower: bool, unit_diagonal: bool) -> Launch:
    """Solve ``a @ x = b``; see `solve_tri`.

    Parameters
    ----------
    a : (..., n, n)
        f32, f16 or bf16.
    b : (..., n, k)
        f32, f16 or bf16.

    Returns
    -------
    (..., n, k), f32.
    """
    n, cols = b.spec.shape[-2:]
    batch = broadcast("solve_tri", _batch(a), _batch(b))
    out = Spec.dense((*batch, n, cols), F32)
    # A thread solves one column: rows depend on each other, columns do not.
    columns = out.size // n if n else 0
    return Launch(
        out,
        {"a": a, "b": b},
        threads=columns,
        params={
            "columns": columns,
            "n": n,
            "cols": cols,
            "shape": pad_to_4d(out.shape, 1),
            "a_strides": pad_to_4d(broadcast_strides(_batch(a), batch) + a.spec.strides[-2:], 0),
            "b_strides": pad_to_4d(broadcast_strides(_batch(b), batch) + b.spec.strides[-2:], 0),
        },
        choices={"LOWER": lower, "UNIT": unit_diagonal},
        work=out.size * n * 4,
    )


@solve_columns.reference
def solve_columns_reference(a: Array, b: Array, *, lower: bool, unit_diagonal: bool) -> Array:
    """Solve by substitution, row after row."""
    n = b.shape[-2]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    # In f64, since errors of a row grow in later ones.
    a = np.broadcast_to(a, (*batch, n, n)).astype(np.float64)
    y = np.broadcast_to(b, (*batch, *b.shape[-2:])).astype(np.float64)
    for row in range(n) if lower else range(n - 1, -1, -1):
        known = slice(0, row) if lower else slice(row + 1, n)
        y[..., row, :] -= (a[..., row : row + 1, known] @ y[..., known, :])[..., 0, :]
        if not unit_diagonal:
            y[..., row, :] /= a[..., row, row, None]
    return y


def _batch(node: Node) -> Spec:
    """Return the leading axes of a batch of matrices."""
    spec = node.spec
    return Spec(spec.shape[:-2], spec.dtype, spec.strides[:-2], spec.offset)


def solve_tri(
    a: Node, b: Node, lower: bool = True, left: bool = True, unit_diagonal: bool = False
) -> Node:
    """Solve linear equations whose matrix is triangular.

    Parameters
    ----------
    a : (..., n, n), f32, f16 or bf16
        The other triangle is not looked at.
    b : (..., n, k), or (..., k, n) where `left` is false; batches broadcast with those of `a`
    lower : bool
        `a` is a lower triangle.
    left : bool
        Solve ``a @ x = b``, else ``x @ a = b``.
    unit_diagonal : bool
        Take the diagonal of `a` to be ones.

    Returns
    -------
    Tensor of the shape of `b`, f32; infinite or NaN where a diagonal has zeros.

    Raises
    ------
    ShapeError
        `a` is not square, or `b` has other extents than it.
    """
    for name, node in (("a", a), ("b", b)):
        require_rank("solve_tri", name, node, 2)
        require_dtype("solve_tri", name, node, FLOATS)
    n, extent = a.spec.shape[-1], b.spec.shape[-2 if left else -1]
    require(
        a.spec.shape[-2] == n and extent == n,
        ShapeError,
        f"solve_tri: a is {a.spec.shape}, b is {b.spec.shape}, needs a square and "
        f"{'rows' if left else 'columns'} of b as long as it",
    )
    if left:
        return solve_columns(a, b, lower=lower, unit_diagonal=unit_diagonal)
    # x a = b is aᵀ xᵀ = bᵀ, and aᵀ has the other triangle.
    turned = solve_columns(
        swap_last(a, -2), swap_last(b, -2), lower=not lower, unit_diagonal=unit_diagonal
    )
    return swap_last(turned, -2)
