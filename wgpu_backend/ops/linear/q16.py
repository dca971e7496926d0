"""Activations in sixteen bits, for products of few columns on devices that multiply packed bytes.

A group of 32 values has one scale, and a value is 256 times a byte plus another, both with a sign:
two parts of eight bits, as of `q8_pair`, but with scales of which one is a 256th of the other. So
products with either are summed as one integer, which is scaled once, and weights are unpacked once
for both.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import F32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import require, require_dtype, require_rank, require_row
from wgpu_backend.ops.linear.q8_rounding import GROUP
from wgpu_backend.ops.op import op

WORDS = 20  # of a group: eight of upper bytes, eight of lower ones, and four as in eight bits
PLANES = 5  # that these are spread over, a vector of four each


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


@op(shader="ops/linear/q16_activations", dense=("x", "weight"), trusted=True)
def q16_weighted(x: Node, weight: Node) -> Launch:
    """Round rows as `q16_activations`, times the weight of a norm; the squares are of `x` alone.

    Parameters
    ----------
    x : (..., k), f32
    weight : (k,), f32

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


def _rounding(name: str, x: Node) -> Launch:
    require_rank(name, "x", x, 1)
    require_dtype(name, "x", x, (F32,))
    *rows, k = x.spec.shape
    require(
        k % GROUP == 0,
        ShapeError,
        f"{name}: rows of x have {k} values, needs a multiple of {GROUP}",
    )
    size = x.spec.size // GROUP
    return Launch(
        q16_spec((*rows,), k // GROUP),
        {"x": x},
        threads=size,
        params={"size": size, "groups": k // GROUP},
        choices={"WEIGHTED": False},
        work=2 * x.spec.nbytes,
    )


def q16_spec(rows: Shape, groups: int) -> Spec:
    """Spec of rows in sixteen bits, see `q16_activations`."""
    return Spec.dense((PLANES, *rows, groups, WORDS // PLANES), U32)
