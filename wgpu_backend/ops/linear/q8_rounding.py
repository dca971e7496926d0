"""Rounding of activations to eight bits, group by group, and how the groups lie."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import F32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import require, require_dtype, require_rank, require_row
from wgpu_backend.ops.op import op

GROUP = 32  # values with a common scale
WORDS = 12  # of a group: eight of quants, its scale, two sums, and its squares
PLANES = 3  # that these may be spread over, a vector of four each
PLANAR_COLUMNS = 16  # up to so many, kernels of GPUs read planes


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


@op(dense=("x", "weight"), trusted=True)
def q8_weighted(x: Node, weight: Node, *, planar: bool = False) -> Launch:
    """Round rows as `q8_activations`, times the weight of a norm; the squares are of `x` alone.

    A product that is given the norm's `eps` makes the norm of it: a factor that a whole row has
    changes nothing in how the row is rounded, so it may come later.

    Parameters
    ----------
    x : (..., k), f32
    weight : (k,), f32
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


def _rounding(name: str, x: Node, planar: bool) -> Launch:
    require_rank(name, "x", x, 1)
    require_dtype(name, "x", x, (F32,))
    k = x.spec.shape[-1]
    require(
        k % GROUP == 0,
        ShapeError,
        f"{name}: rows of x have {k} values, needs a multiple of {GROUP}",
    )
    size = x.spec.size // GROUP
    return Launch(
        rounded_spec(x.spec.shape[:-1], k // GROUP, planar),
        {"x": x},
        threads=size,
        params={"size": size},
        choices={"PLANAR": planar},
        work=2 * x.spec.nbytes,
    )


def rounded_spec(rows: Shape, groups: int, planar: bool, parts: int = 1) -> Spec:
    """Spec of rows in eight bits, or of so many side by side for each; see `q8_activations`."""
    if planar:
        return Spec.dense((PLANES, *rows, parts * groups, WORDS // PLANES), U32)
    return Spec.dense((*rows, *([parts] if parts > 1 else []), groups, WORDS), U32)
