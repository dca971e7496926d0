"""NumPy twins of `wgpu_backend.ops.shape.triangular`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def tri(x: Array, kind: int) -> Array:
    """Triangle of each matrix."""
    return np.triu(x, kind) if kind < 2 else np.tril(x, 2 - kind)


@twin
def band(x: Array, *, lowest: int, highest: int) -> Array:
    """Diagonals of each matrix."""
    places: Array = np.indices(x.shape[-2:])
    side = places[1] - places[0]
    return np.where((side >= lowest) & (side <= highest), x, np.zeros((), x.dtype))


@twin
def diag(x: Array) -> Array:
    """Matrices with vectors on their diagonals."""
    on = np.eye(x.shape[-1], dtype=bool)
    return np.where(on, x[..., None], np.zeros((), x.dtype))  # a product would give -0 and NaN


@twin
def solve_columns(a: Array, b: Array, *, lower: bool, unit_diagonal: bool) -> Array:
    """Solve by substitution, row after row."""
    n = b.shape[-2]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = np.broadcast_to(a, (*batch, n, n)).astype(np.float64)
    y = np.broadcast_to(b, (*batch, *b.shape[-2:])).astype(np.float64)
    for row in range(n) if lower else range(n - 1, -1, -1):
        known = slice(0, row) if lower else slice(row + 1, n)
        y[..., row, :] -= (a[..., row : row + 1, known] @ y[..., known, :])[..., 0, :]
        if not unit_diagonal:
            y[..., row, :] /= a[..., row, row, None]
    return y
