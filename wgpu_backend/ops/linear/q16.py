"""Activations in sixteen bits, for products of few columns on devices that multiply packed bytes.

A group of 32 values has one scale, and a value is 256 times a byte plus another, both with a sign:
two parts of eight bits, as of `q8_pair`, but with scales of which one is a 256th of the other. So
products with either are summed as one integer, which is scaled once, and weights are unpacked once
for both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import U32
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import require_rank, require_row
from wgpu_backend.ops.linear.q8_rounding import GROUP, in_groups, require_groups, sum_squares
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# Words of a group: eight of upper bytes, eight of lower ones, and four as in eight bits.
WORDS = 20
# Planes that these are spread over, a vector of four each.
PLANES = 5


@op(dense=("x",), trusted=True)
def q16_activations(x: Node) -> Launch:
    """Round groups of 32 values to sixteen bits each, for `linear`.

    Parameters
    ----------
    x : (..., k), f32
        `k` a multiple of 32. A group of no magnitude above 2^-100 counts as zero; one with an
        infinity or NaN makes every product with it NaN.

    Returns
    -------
    (5, ..., k / 32, 4), u32
        Of each group, in planes of vectors of four words: the upper bytes of 32 values, their lower
        bytes, then as f32 the scale, the sum of the values times the scale, of all and of the first
        16, and the sum of the squares of `x`. A value is ``round(x / scale)``, halves to even, and
        the scale a 32639th of the largest magnitude; it is 256 times the upper byte plus the lower.

    Raises
    ------
    ShapeError
        Rows are not whole groups.
    """
    # The kernel has a weight, which it then never reads.
    launch = _rounding("q16_activations", x)
    return replace(
        launch,
        params={**launch.params, "weight_offset": 0},
        choices={**launch.choices, "weight": "=x"},
    )


@q16_activations.reference
def q16_activations_reference(x: Array) -> Array:
    """Round groups of 32 values to sixteen bits, with their scale, sums and squares."""
    return _in_planes(_round(in_groups(x)))


@op(shader="ops/linear/q16_activations", dense=("x", "weight"), trusted=True)
def q16_weighted(x: Node, weight: Node) -> Launch:
    """Round weighted rows as `q16_activations` does; the squares are of `x` without the weight.

    Parameters
    ----------
    x : (..., k)
        f32.
    weight : (k,)
        f32.

    Returns
    -------
    (5, ..., k / 32, 4), u32

    Raises
    ------
    ShapeError
        As `q16_activations`, or the weight is no such row.
    """
    launch = _rounding("q16_weighted", x)
    require_row("q16_weighted", "weight", weight, x.spec.shape[-1])
    return replace(
        launch,
        operands={"x": x, "weight": weight},
        choices={**launch.choices, "WEIGHTED": True},
    )


@q16_weighted.reference
def q16_weighted_reference(x: Array, weight: Array) -> Array:
    """Apply `q16_activations` to weighted rows, with the squares of the unweighted rows."""
    groups = _round(in_groups(x * weight))
    # A norm's factor is of the rows before its weight.
    groups[..., 19:] = sum_squares(in_groups(x)).view(np.uint32)
    return _in_planes(groups)


def _rounding(name: str, x: Node) -> Launch:
    require_rank(name, "x", x, 1)
    k, rows = require_groups(name, x), x.spec.shape[:-1]
    size = x.spec.size // GROUP
    return Launch(
        q16_spec(rows, k // GROUP),
        {"x": x},
        threads=size,
        params={"size": size, "groups": k // GROUP},
        choices={"WEIGHTED": False},
        work=2 * x.spec.nbytes,
    )


def q16_spec(rows: Shape, groups: int) -> Spec:
    """Return the spec of rows in sixteen bits, see `q16_activations`."""
    return Spec.dense((PLANES, *rows, groups, WORDS // PLANES), U32)


_SMALLEST, _INFINITY = np.uint32(0x0D800000), np.uint32(0x7F800000)
# 127 * 256 + 127: the largest value whose upper and lower byte are both signed bytes.
_STEPS = np.float32(32639)


def _round(groups: Array) -> Array:
    """Round groups to (..., 20) words."""
    # By their bits, so that a NaN is the largest magnitude.
    largest = np.abs(groups).view(np.uint32).max(axis=-1, keepdims=True)
    # Smaller values count as zeros: the inverse of their scale could overflow.
    plain = (largest >= _SMALLEST) & (largest < _INFINITY)
    magnitude = np.where(plain, largest, np.float32(1).view(np.uint32)).view(np.float32)
    scale = np.where(plain, magnitude * np.float32(1 / 32639), np.float32(0))
    quants = np.rint(np.where(plain, groups, np.float32(0)) * (_STEPS / magnitude)).astype(np.int32)
    sums = [quants[..., :count].sum(axis=-1, keepdims=True, dtype=np.int32) for count in (32, 16)]
    # A group with NaN or an infinity gives NaN.
    given = np.where(largest >= _INFINITY, np.float32(np.nan), scale)
    parts = [given, *(s.astype(np.float32) * scale for s in sums), sum_squares(groups)]
    # Rounded to the nearest, so that what remains is a signed byte.
    upper = (quants + 128) >> 8
    words = [each.astype(np.int8).view(np.uint32) for each in (upper, quants - 256 * upper)]
    return np.concatenate([*words, np.concatenate(parts, axis=-1).view(np.uint32)], axis=-1)


def _in_planes(groups: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(groups.reshape(*groups.shape[:-1], 5, 4), -2, 0))


def q16_values(x: Array) -> Array:
    """Decode groups to values, (..., k)."""
    words = np.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], 20)
    upper, lower = (
        np.ascontiguousarray(words[..., at : at + 8]).view(np.int8).astype(np.float32)
        for at in (0, 8)
    )
    scale = np.ascontiguousarray(words[..., 16:17]).view(np.float32)
    return ((256 * upper + lower) * scale).reshape(*words.shape[:-2], -1)
