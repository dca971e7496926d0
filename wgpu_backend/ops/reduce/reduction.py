"""Ops that reduce axes: sum, mean, variance, stddev, max, min, sum_rows; and l2_norm.

Each is `reduce`, in as many stages as the number of values asks for: first parts of every output,
then their results. Sums are in f32, by many partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node, ParamValue
from wgpu_backend.graph.spec import Shape, Spec, merged_axes
from wgpu_backend.ops.check import (
    FLOATS,
    Axes,
    axes_of,
    grid_for,
    pad_to_4d,
    require,
    require_dtype,
    require_rank,
    row_count,
)
from wgpu_backend.ops.elementwise.pointwise import sqrt
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import in_vec4s
from wgpu_backend.ops.shape.copying import cast
from wgpu_backend.ops.shape.shapes import reshaped

# Values that one work group, or one thread where threads work alone, reduces.
GROUP_PART, THREAD_PART = 4096, 256
FEW = 32  # values that are too few for a work group
# Choices of the shader that make a reduction.
REDUCTIONS = {
    ("sum", F32): {"reduce_op": "lib/reduce_op/sum"},
    ("sum", I32): {"reduce_op": "lib/reduce_op/sum_i32"},
    ("squares", F32): {"reduce_op": "lib/reduce_op/squares"},
    ("max", F32): {"reduce_op": "lib/reduce_op/extreme", "SMALLEST": False},
    ("max", I32): {"reduce_op": "lib/reduce_op/extreme_i32", "SMALLEST": False},
    ("min", F32): {"reduce_op": "lib/reduce_op/extreme", "SMALLEST": True},
    ("min", I32): {"reduce_op": "lib/reduce_op/extreme_i32", "SMALLEST": True},
}


@op(trusted=True)
def reduce(
    x: Node,
    centre: Node | None = None,
    *,
    kind: str,
    axes: Sequence[int],
    part: int,
    divisor: float = 1.0,
) -> Launch:
    """Fold parts of each output; see `sum` and its like, which are made of it.

    Parameters
    ----------
    x : (...), up to four axes of any strides; f32, f16, bf16, or i32 for sum, max and min
    centre : (outputs,), f32, or None
        What ``squares`` are measured from.
    kind : str
        ``sum``, ``squares``, ``max`` or ``min``.
    axes : sequence of int
        Folded away; counted from the front.
    part : int
        Values in a part; the last may have fewer.
    divisor : float
        Sums of floats are divided by it.

    Returns
    -------
    (outputs, parts), f32; i32 for i32
        Outputs in the order of the axes kept.
    """
    number = I32 if x.spec.dtype == I32 else F32
    kept, reduced = _split(x.spec, axes)
    parts = _parts(reduced.size, part)
    launch = Launch(
        Spec.dense((kept.size, parts), number),
        {"x": x, "centre": x if centre is None else centre},
        threads=kept.size * parts,
        params={**_layout(kept, reduced), "part": part, "parts": parts, "divisor": divisor},
        choices={
            **REDUCTIONS[kind, number],
            "CENTRED": kind == "squares",
            "ONE_REDUCED_AXIS": len(reduced.shape) < 2,
            "ONE_KEPT_AXIS": len(kept.shape) < 2,
        },
        work=x.spec.nbytes,
    )
    if _in_column_vec4s(kept, reduced, x.spec.offset):
        return replace(launch, threads=launch.out.size // 4, shader="ops/reduce_column_vec4")
    return _along_reduced(launch, kept, reduced, part)


def _along_reduced(launch: Launch, kept: Spec, reduced: Spec, part: int) -> Launch:
    """Launch of a work group, or of a thread that reduces alone, for each part of an output."""
    x, centre = launch.operands["x"], launch.operands["centre"]
    choices = {**launch.choices, **_by_vec4s(kept, reduced, part, x.spec.offset)}
    launch = replace(launch, operands={"x": x, "vec4s": x, "centre": centre}, choices=choices)
    if not _threads_alone(kept, reduced, part):
        return replace(launch, groups=grid_for(launch.out.size))
    by_parts = reduced.strides[-1:] == (1,)
    return replace(launch, shader="ops/reduce_columns", choices={**choices, "BY_PARTS": by_parts})


def _in_column_vec4s(kept: Spec, reduced: Spec, offset: int) -> bool:
    """Whether values of four neighbouring outputs always are a whole vector in storage."""
    if reduced.dtype == I32 or kept.strides[-1:] != (1,) or kept.shape[-1] % 4:
        return False
    return all(n % 4 == 0 for n in (offset, *kept.strides[:-1], *reduced.strides))


def _by_vec4s(kept: Spec, reduced: Spec, part: int, offset: int) -> dict[str, str | bool]:
    """Choices that make a kernel read whole vectors of four, where all it reduces lies in such."""
    if reduced.dtype == I32:
        return {"vec4s": "formats/vec4/f32"}  # declared, and left alone
    neighbours = len(reduced.shape) == 1 and reduced.strides == (1,)
    whole = all(n % 4 == 0 for n in (reduced.size, part, offset, *kept.strides))
    return {"VEC4S": neighbours and whole}


def _layout(kept: Spec, reduced: Spec) -> dict[str, ParamValue]:
    """Params that tell where outputs begin and how the values of one lie."""
    return {
        "outputs": kept.size,
        "length": reduced.size,
        "kept_shape": pad_to_4d(kept.shape, 1),
        "kept_strides": pad_to_4d(kept.strides, 0),
        "reduced_shape": pad_to_4d(reduced.shape, 1),
        "reduced_strides": pad_to_4d(reduced.strides, 0),
    }


def _split(spec: Spec, axes: Sequence[int]) -> tuple[Spec, Spec]:
    """Axes kept and axes reduced, each with neighbours merged that step as one."""
    groups: list[Spec] = []
    for wanted in (False, True):
        chosen = [a for a in range(len(spec.shape)) if (a in axes) == wanted]
        shape = tuple(spec.shape[a] for a in chosen)
        strides = tuple(spec.strides[a] for a in chosen)
        merged = merged_axes(Spec(shape, spec.dtype, strides))
        groups.append(Spec(tuple(m[0] for m in merged), spec.dtype, tuple(m[1] for m in merged)))
    return groups[0], groups[1]


def _threads_alone(kept: Spec, reduced: Spec, part: int) -> bool:
    """Whether threads reduce by themselves: few values, or neighbours are of other outputs."""
    if reduced.size < FEW or part < FEW:
        return True
    return reduced.strides[-1] != 1 and kept.strides[-1:] == (1,)


def _parts(length: int, part: int) -> int:
    return -(-length // part) if length else 1


def _kept(shape: Shape, axes: Sequence[int], keep_dims: bool) -> Shape:
    if keep_dims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _reduced(
    x: Node, kind: str, axes: Sequence[int], divisor: float = 1.0, centre: Node | None = None
) -> Node:
    """Fold in as many stages as it takes; the result is (outputs, 1)."""
    kept, reduced = _split(x.spec, axes)
    part = THREAD_PART if _threads_alone(kept, reduced, GROUP_PART) else GROUP_PART
    if reduced.size <= 2 * part:
        whole = reduced.size or 1
        return reduce(x, centre, kind=kind, axes=axes, part=whole, divisor=divisor)
    parts = reduce(x, centre, kind=kind, axes=axes, part=part)
    return _reduced(parts, "sum" if kind == "squares" else kind, (1,), divisor)


def _checked(name: str, x: Node, *, integers: bool = False) -> None:
    require_rank(name, "x", x, 0)
    require_dtype(name, "x", x, (*FLOATS, I32) if integers else FLOATS)


def sum(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Sum over axes.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or i32
    axes : int, sequence of int, or None
        None sums everything.
    keep_dims : bool
        Leave the axes in the shape, as 1.

    Returns
    -------
    Tensor without the axes, f32; i32, modulo 2³², where `x` is. NaN and infinities come through as
    in NumPy; the sum of nothing is 0.

    Raises
    ------
    ShapeError
        There is no such axis, or it is named twice.
    """
    _checked("sum", x, integers=True)
    found = axes_of("sum", x.spec, axes)
    return reshaped(_reduced(x, "sum", found), _kept(x.spec.shape, found, keep_dims))


def sum_rows(x: Node) -> Node:
    """Sum of each row, the last axis, which stays as 1; see `sum`."""
    return sum(x, -1, keep_dims=True)


def mean(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Mean over axes; see `sum`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, f32; NaN where there is nothing to take the mean of.
    """
    _checked("mean", x)
    found = axes_of("mean", x.spec, axes)
    return reshaped(_mean(x, found), _kept(x.spec.shape, found, keep_dims))


def _count(x: Node, axes: Sequence[int]) -> int:
    return math.prod(x.spec.shape[a] for a in axes)


def _mean(x: Node, axes: Sequence[int]) -> Node:
    return _reduced(x, "sum", axes, float(_count(x, axes)))


def variance(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Mean square of the distance from the mean, over axes: the population's variance.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, f32. The mean is subtracted first, so nothing cancels.
    """
    return _variance("variance", x, axes, keep_dims)


def _variance(name: str, x: Node, axes: Axes, keep_dims: bool) -> Node:
    _checked(name, x)
    found = axes_of(name, x.spec, axes)
    centre = reshaped(_mean(x, found), (-1,)) if x.spec.size else None
    squares = _reduced(x, "squares", found, float(_count(x, found)), centre)
    return reshaped(squares, _kept(x.spec.shape, found, keep_dims))


def stddev(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Square root of the `variance` over axes.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, f32.
    """
    return sqrt(_variance("stddev", x, axes, keep_dims))


def _extreme(name: str, x: Node, axes: Axes, keep_dims: bool) -> Node:
    _checked(name, x, integers=True)
    found = axes_of(name, x.spec, axes)
    shape = _kept(x.spec.shape, found, keep_dims)
    require(
        _count(x, found) > 0 or math.prod(shape) == 0,
        ShapeError,
        f"{name}: x is {x.spec.shape}, axes {found} have 0 values, need at least 1",
    )
    result = reshaped(_reduced(x, name, found), shape)
    return result if result.spec.dtype == x.spec.dtype else cast(result, dtype=x.spec.dtype)


def max(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Largest value over axes; NaN where there is one.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or i32
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, of the dtype of `x`.

    Raises
    ------
    ShapeError
        As in `sum`, or there is nothing to choose from.
    """
    return _extreme("max", x, axes, keep_dims)


def min(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Smallest value over axes; NaN where there is one. See `max`.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or i32
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, of the dtype of `x`.
    """
    return _extreme("min", x, axes, keep_dims)


@op(dense=("x",), trusted=True)
def l2_norm(x: Node, *, eps: float) -> Launch:
    """Divide each row by its length.

    Parameters
    ----------
    x : (..., cols), f32, f16 or bf16
    eps : float
        Shorter rows are divided by it.

    Returns
    -------
    Tensor of the shape of `x`, f32: ``x / max(sqrt(sum(x * x)), eps)``.
    """
    require_rank("l2_norm", "x", x, 1)
    require_dtype("l2_norm", "x", x, FLOATS)
    rows, cols = row_count(x.spec), x.spec.shape[-1]
    return Launch(
        Spec.dense(x.spec.shape, F32),
        {"x": x},
        groups=grid_for(rows),
        shader="ops/l2_norm_vec4" if in_vec4s(cols, x) else "",
        params={"rows": rows, "cols": cols, "eps": eps},
        work=2 * x.spec.nbytes,
    )
