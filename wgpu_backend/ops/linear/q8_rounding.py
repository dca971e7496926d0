"""Rounding of activations to eight bits, group by group, and the layout of the groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import F32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import require, require_dtype, require_rank, require_row
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# Values with a common scale.
GROUP = 32
# Words of a group: eight of quants, its scale, two sums, and its squares.
WORDS = 12
# Planes that these may be spread over, a vector of four each.
PLANES = 3
# Up to so many columns, kernels of GPUs read planes: a load of 32 lanes then touches 4 lines of 128
# bytes, not 12.
PLANAR_COLUMNS = 16


@op(dense=("x",), trusted=True)
def q8_activations(x: Node, *, planar: bool = False) -> Launch:
    """Round groups of 32 values to eight bits each, for `linear`.

    Parameters
    ----------
    x : (..., k), f32
        `k` a multiple of 32. A group of no magnitude above 2^-100 counts as zero; one with an
        infinity or NaN makes every product with it NaN.
    planar : bool
        Put each vector of four words of the groups into a plane of its own: hardware, whose
        neighbouring lanes take neighbouring groups, then reads what lies side by side.

    Returns
    -------
    (..., k / 32, 12), u32, or planar (3, ..., k / 32, 4)
        Of each group: 32 i8 in eight words, then as f32 the scale, the sum of the i8 times the
        scale, of all and of the first 16, and the sum of the squares of `x`. An i8 is
        ``round(value / scale)``, halves to even, and the scale a 127th of the largest magnitude.

    Raises
    ------
    ShapeError
        Rows are not whole groups.
    """
    return _rounding("q8_activations", x, planar)


@q8_activations.reference
def q8_activations_reference(x: Array, *, planar: bool = False) -> Array:
    """Round groups of 32 values to eight bits, with their scale, sums and squares."""
    return to_planes(_round(x)) if planar else _round(x)


@op(dense=("x", "weight"), trusted=True)
def q8_weighted(x: Node, weight: Node, *, planar: bool = False) -> Launch:
    """Round weighted rows as `q8_activations` does; the squares are of `x` without the weight.

    A product that gets the norm's `eps` completes the norm. A factor of a whole row does not change
    how the row is rounded, so it may be applied later.

    Parameters
    ----------
    x : (..., k)
        f32.
    weight : (k,)
        f32.
    planar : bool
        See `q8_activations`.

    Returns
    -------
    (..., k / 32, 12), u32, or planar (3, ..., k / 32, 4)

    Raises
    ------
    ShapeError
        As `q8_activations`, or the weight is no such row.
    """
    launch = _rounding("q8_weighted", x, planar)
    k = x.spec.shape[-1]
    require_row("q8_weighted", "weight", weight, k)
    return replace(
        launch,
        operands={"x": x, "weight": weight},
        params={**launch.params, "groups": k // GROUP},
    )


@q8_weighted.reference
def q8_weighted_reference(x: Array, weight: Array, *, planar: bool = False) -> Array:
    """Apply `q8_activations` to weighted rows, with the squares of the unweighted rows."""
    groups = _round(x * weight)
    # A norm's factor is of the rows before its weight.
    groups[..., 11:] = sum_squares(in_groups(x)).view(np.uint32)
    return to_planes(groups) if planar else groups


def _rounding(name: str, x: Node, planar: bool) -> Launch:
    require_rank(name, "x", x, 1)
    k = require_groups(name, x)
    size = x.spec.size // GROUP
    return Launch(
        rounded_spec(x.spec.shape[:-1], k // GROUP, planar),
        {"x": x},
        threads=size,
        params={"size": size},
        choices={"PLANAR": planar},
        work=2 * x.spec.nbytes,
    )


def require_groups(name: str, x: Node) -> int:
    """Check that x is f32, with rows of whole groups; return the values of a row."""
    require_dtype(name, "x", x, (F32,))
    k = x.spec.shape[-1]
    require(
        k % GROUP == 0,
        ShapeError,
        f"{name}: rows of x have {k} values, needs a multiple of {GROUP}",
    )
    return k


def rounded_spec(rows: Shape, groups: int, planar: bool, parts: int = 1) -> Spec:
    """Return the spec of rows in eight bits, `parts` for each; see `q8_activations`."""
    if planar:
        return Spec.dense((PLANES, *rows, parts * groups, WORDS // PLANES), U32)
    return Spec.dense((*rows, *([parts] if parts > 1 else []), groups, WORDS), U32)


_SMALLEST, _INFINITY = np.uint32(0x0D800000), np.uint32(0x7F800000)


def to_planes(groups: Array) -> Array:
    """Reorder groups of (..., 12) words as planes, (3, ..., 4)."""
    return np.ascontiguousarray(np.moveaxis(groups.reshape(*groups.shape[:-1], 3, 4), -2, 0))


def from_planes(x: Array) -> Array:
    """Return groups of (..., 12) words, from planes or not."""
    whole = x if x.shape[-1] == 12 else np.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], 12)
    return np.ascontiguousarray(whole)


def _round(x: Array) -> Array:
    groups = in_groups(x)
    # By their bits, so that a NaN is the largest magnitude.
    largest = np.abs(groups).view(np.uint32).max(axis=-1, keepdims=True)
    # Smaller values count as zeros: the inverse of their scale could overflow.
    plain = (largest >= _SMALLEST) & (largest < _INFINITY)
    magnitude = np.where(plain, largest, np.float32(1).view(np.uint32)).view(np.float32)
    # Multiplied, not divided, as in the shader: division there may be off by 2.5 ULP.
    scale = np.where(plain, magnitude * np.float32(1 / 127), np.float32(0))
    scaled = np.where(plain, groups, np.float32(0)) * (np.float32(127) / magnitude)
    quants = np.rint(scaled).astype(np.int8)
    sums = [quants[..., :count].sum(axis=-1, keepdims=True, dtype=np.int32) for count in (32, 16)]
    given = np.where(largest >= _INFINITY, np.float32(np.nan), scale)
    parts = [given, *(s.astype(np.float32) * scale for s in sums), sum_squares(groups)]
    tail = np.concatenate(parts, axis=-1)
    return np.concatenate([quants.view(np.uint32), tail.view(np.uint32)], axis=-1)


def sum_squares(groups: Array) -> Array:
    """Return the sum of the squares of each group, (..., 1)."""
    return np.sum(groups * groups, axis=-1, keepdims=True)


def in_groups(x: Array) -> Array:
    """Split rows into groups of 32 values, (..., 32), f32."""
    return x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)


def q8_values(x: Array) -> Array:
    """Decode groups to values, (..., k)."""
    words = from_planes(x)
    quants = np.ascontiguousarray(words[..., :8]).view(np.int8).astype(np.float32)
    scale = np.ascontiguousarray(words[..., 8:9]).view(np.float32)
    return (quants * scale).reshape(*words.shape[:-2], -1)


def q8_norm_factor(x: Array, eps: float | None) -> Array:
    """Return the norm's factor of each row, (..., 1)."""
    if eps is None:
        return np.float32(1).reshape(1)
    squares = np.ascontiguousarray(from_planes(x)[..., 11]).view(np.float32)
    squares = squares.sum(axis=-1, keepdims=True)
    return 1 / np.sqrt(squares / np.float32(32 * x.shape[-2]) + np.float32(eps))
