"""Norms fused into products with f32 activations.

A product is linear, so the factor that a norm gives a row may be applied to its sums.
`norm_weighted` applies the norm's weight, and stores the squares of a row after its values. A
product that gets the norm's `eps` computes the factor from them, if a kernel family has such a
kernel.
"""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.fusion import OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import (
    require_rank,
    require_row,
    row_count,
)
from wgpu_backend.ops.linear.q8_rounding import require_groups
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# Values of a row that products take at once.
GROUP = 32
# Values that share a sum of squares: the rows that a work group of a product makes.
SQUARED = 64


def square_count(values: int) -> int:
    """Return how many sums of squares follow a row of `values` values: whole vectors of four."""
    return -(-values // (4 * SQUARED)) * 4


@op(dense=("x", "weight"), trusted=True)
def norm_weighted(x: Node, weight: Node) -> Launch:
    """Multiply rows by the weight of a norm, and append their sums of squares.

    Parameters
    ----------
    x : (..., k), f32
        `k` a multiple of 32.
    weight : (k,)
        f32.

    Returns
    -------
    (..., k + squares), f32
        After the weighted values of a row, the sum of the squares of each 64 of `x`, and zeros up
        to a whole vector of four.

    Raises
    ------
    ShapeError
        Rows are not whole groups, or the weight is no such row.
    """
    require_rank("norm_weighted", "x", x, 1)
    k, lead = require_groups("norm_weighted", x), x.spec.shape[:-1]
    require_row("norm_weighted", "weight", weight, k)
    size = row_count(x.spec) * square_count(k)
    return Launch(
        weighted_spec(Spec.dense((*lead, k), F32)),
        {"x": x, "weight": weight},
        threads=size,
        params={"size": size, "cols": k},
        work=2 * x.spec.nbytes,
    )


@norm_weighted.reference
def norm_weighted_reference(x: Array, weight: Array) -> Array:
    """Return weighted rows, with the sums of squares of the rows appended."""
    *lead, k = x.shape
    count = square_count(k)
    # Zeros fill the last sum, and sums up to a whole vector.
    padded = np.zeros((*lead, count * SQUARED), x.dtype)
    padded[..., :k] = x * x
    squares = padded.reshape(*lead, count, SQUARED).sum(axis=-1)
    return np.concatenate([x * weight, squares], axis=-1)


def weighted_spec(rows: Spec) -> Spec:
    """Return the spec of rows with their sums of squares appended."""
    *lead, k = rows.shape
    return Spec.dense((*lead, k + square_count(k)), F32)


def in_whole_groups(norm: OpNode) -> bool:
    """Return whether a norm is of f32 in whole groups, which kernels read by vectors of four."""
    x, weight = norm.operands["x"], norm.operands["weight"]
    dense = x.spec.is_dense and x.spec.offset % 4 == 0 and weight.spec.offset % 4 == 0
    return dense and {x.spec.dtype, weight.spec.dtype} == {F32} and x.spec.shape[-1] % GROUP == 0


def apply_norm_factor(rows: Array, k: int, eps: float | None) -> Array:
    """Return the values of rows, with the norm's factor for rows from `norm_weighted`."""
    if eps is None:
        return rows
    squares = rows[..., k:].sum(axis=-1, keepdims=True)
    return rows[..., :k] / np.sqrt(squares / np.float32(k) + np.float32(eps))
