"""Reduction of a tensor's axes: `reduce`, in as many stages as the values need.

Parts of every output are folded first, then their results. Sums are in f32, by many partial sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from wgpu_backend.dtypes import BOOL, F32, I8, I16, I32, I64, U8, U16, U32, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node, ParamValue
from wgpu_backend.graph.spec import Spec, merged_axes
from wgpu_backend.ops.check import FLOATS, grid_for, pad_to_4d, require
from wgpu_backend.ops.elementwise.launches import WIDE
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.views import permute

# Values that one work group, or one thread where threads work alone, reduces.
GROUP_PART, THREAD_PART = 4096, 256
# Values that are too few for a work group.
FEW = 32
# Axes that a vector of the shader holds.
AXES = 4
INTEGERS = (I32, U32, I16, I8, U16, U8, *WIDE)
NUMBERS = (*FLOATS, *INTEGERS, BOOL)
# Choices of the shader that make a reduction, by kind and by the type of its results.
REDUCTIONS = {
    ("sum", F32): {"reduce_op": "lib/reduce_op/sum"},
    ("sum", I32): {"reduce_op": "lib/reduce_op/sum_i32"},
    ("sum", U32): {"reduce_op": "lib/reduce_op/sum_i32"},
    ("running_sum", F32): {"reduce_op": "lib/reduce_op/running_sum"},
    ("squares", F32): {"reduce_op": "lib/reduce_op/squares"},
    ("prod", F32): {"reduce_op": "lib/reduce_op/prod"},
    ("prod", I32): {"reduce_op": "lib/reduce_op/prod_i32"},
    ("prod", U32): {"reduce_op": "lib/reduce_op/prod_i32"},
    ("logaddexp", F32): {"reduce_op": "lib/reduce_op/logaddexp"},
    ("max", F32): {"reduce_op": "lib/reduce_op/extreme", "SMALLEST": False},
    ("max", I32): {"reduce_op": "lib/reduce_op/extreme_i32", "SMALLEST": False},
    ("max", U32): {"reduce_op": "lib/reduce_op/extreme_u32", "SMALLEST": False},
    ("min", F32): {"reduce_op": "lib/reduce_op/extreme", "SMALLEST": True},
    ("min", I32): {"reduce_op": "lib/reduce_op/extreme_i32", "SMALLEST": True},
    ("min", U32): {"reduce_op": "lib/reduce_op/extreme_u32", "SMALLEST": True},
    **{
        (kind, dtype): {"reduce_op": f"lib/reduce_op/{kind}_wide"}
        for kind in ("sum", "prod")
        for dtype in WIDE
    },
    **{
        (kind, dtype): {
            "reduce_op": "lib/reduce_op/extreme_wide",
            "SMALLEST": kind == "min",
            "SIGNED": dtype == I64,
        }
        for kind in ("max", "min")
        for dtype in WIDE
    },
}


def compute_dtype(dtype: DType) -> DType:
    """Return the type that values are computed in: of 32 bits, except for integers of 64."""
    if dtype in WIDE:
        return dtype
    if dtype in FLOATS:
        return F32
    return I32 if dtype in (I32, I16, I8) else U32


def as_words(dtype: DType, *operands: str) -> dict[str, str]:
    """Return the choices of a shader that reads operands of 64 bits as two words each."""
    return dict.fromkeys(operands, "formats/bits_load/wide") if dtype in WIDE else {}


def integer_keys(dtype: DType) -> dict[str, bool]:
    """Return the choices of a shader that orders values by keys."""
    return {"INTEGER": dtype not in FLOATS, "UNSIGNED": compute_dtype(dtype) == U32}


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
    """Reduce each output's values in parts of `part`; `reduction.sum` and others call this op.

    Parameters
    ----------
    x : (...), f32, f16, bf16, integers or bool
        The axes kept, and those folded, are at most four after joining those that step as one.
    centre : (outputs,), f32, or None
        What ``squares`` are measured from.
    kind : str
        ``sum``, ``prod``, ``max`` or ``min``; for floats also ``squares``, ``logaddexp`` and
        ``running_sum``, a sum that is -0.0 where all values are.
    axes : sequence of int
        Folded away; counted from the front.
    part : int
        Values in a part; the last may have fewer.
    divisor : float
        Sums of floats are divided by it.

    Returns
    -------
    (outputs, parts), f32 of floats, integers of 64 bits as they are, i32 of signed ones, u32 of
        others
        Outputs in the order of the axes kept.
    """
    number = compute_dtype(x.spec.dtype)
    kept, reduced = split_axes(x.spec, axes)
    require(
        len(kept.shape) <= AXES and len(reduced.shape) <= AXES,
        ShapeError,
        f"reduce: x is {x.spec.shape} of strides {x.spec.strides}, {len(kept.shape)} axes kept and "
        f"{len(reduced.shape)} folded after joining those that step as one, needs at most {AXES} "
        "each; call contiguous()",
    )
    parts = _parts(reduced.size, part)
    launch = Launch(
        Spec.dense((kept.size, parts), number),
        {"x": x, "centre": x if centre is None else centre},
        threads=kept.size * parts,
        params={**_layout(kept, reduced), "part": part, "parts": parts, "divisor": divisor},
        choices={
            **REDUCTIONS[kind, number],
            **as_words(number, "x"),
            "fours": f"lib/reduce_vec4/{'left_out' if number in WIDE else 'folded'}",
            "CENTRED": kind == "squares",
            "ONE_REDUCED_AXIS": len(reduced.shape) < 2,
            "ONE_KEPT_AXIS": len(kept.shape) < 2,
        },
        work=x.spec.nbytes,
    )
    if _in_column_vec4s(kept, reduced, x.spec.offset):
        choices = {name: c for name, c in launch.choices.items() if name != "fours"}
        shader, threads = "ops/reduce/reduce_column_vec4", launch.out.size // 4
        return replace(launch, threads=threads, shader=shader, choices=choices)
    return _along_reduced(launch, kept, reduced, part)


@reduce.reference
def reduce_reference(
    x: Array,
    centre: Array | None = None,
    *,
    kind: str,
    axes: Sequence[int],
    part: int,
    divisor: float = 1.0,
) -> Array:
    """Fold parts of each output."""
    kept = [a for a in range(x.ndim) if a not in axes]
    lines = x.transpose(*kept, *axes).reshape(
        int(np.prod([x.shape[a] for a in kept], dtype=int)),
        int(np.prod([x.shape[a] for a in axes], dtype=int)),
    )
    lines = lines.astype(numpy_dtype(x.dtype))
    if kind == "squares" and centre is not None:
        lines = (lines - centre.reshape(-1, 1)) ** 2
    starts = range(0, max(lines.shape[1], 1), part)
    if not len(lines):
        # A maximum of no values does not exist.
        return np.empty((0, len(starts)), lines.dtype)
    # For truth values it does: `any` and `all` of nothing.
    if x.dtype == bool and not lines.shape[1]:
        return np.full((len(lines), 1), kind == "min", np.uint32)
    with np.errstate(over="ignore"):
        reduced = [NUMPY_REDUCTIONS[kind](lines[:, s : s + part], axis=1) for s in starts]
    results = np.stack(reduced, axis=1).astype(lines.dtype)
    return results / divisor if kind in ("sum", "squares") and x.dtype.kind == "f" else results


def _along_reduced(launch: Launch, kept: Spec, reduced: Spec, part: int) -> Launch:
    """Return a launch of one work group, or one thread, for each part of an output."""
    x, centre = launch.operands["x"], launch.operands["centre"]
    choices = {**launch.choices, **_by_vec4s(kept, reduced, part, x.spec.offset)}
    launch = replace(launch, operands={"x": x, "vec4s": x, "centre": centre}, choices=choices)
    if not threads_alone(kept, reduced, part):
        return replace(launch, groups=grid_for(launch.out.size))
    by_parts = reduced.strides[-1:] == (1,)
    return replace(
        launch, shader="ops/reduce/reduce_columns", choices={**choices, "BY_PARTS": by_parts}
    )


def _in_column_vec4s(kept: Spec, reduced: Spec, offset: int) -> bool:
    """Return whether values of four neighbouring outputs are always one vector in storage."""
    if reduced.dtype not in FLOATS or kept.strides[-1:] != (1,) or kept.shape[-1] % 4:
        return False
    return all(n % 4 == 0 for n in (offset, *kept.strides[:-1], *reduced.strides))


def _by_vec4s(kept: Spec, reduced: Spec, part: int, offset: int) -> dict[str, str | bool]:
    """Return the shader choices that read vectors of four, if these hold all reduced values."""
    if reduced.dtype not in FLOATS:
        # The kernel declares it and does not read it.
        return {"vec4s": "formats/vec4/f32"}
    neighbours = len(reduced.shape) == 1 and reduced.strides == (1,)
    whole = all(n % 4 == 0 for n in (reduced.size, part, offset, *kept.strides))
    return {"VEC4S": neighbours and whole}


def _layout(kept: Spec, reduced: Spec) -> dict[str, ParamValue]:
    """Return the parameters of where outputs begin, and of their values' strides."""
    return {
        "outputs": kept.size,
        "length": reduced.size,
        "kept_shape": pad_to_4d(kept.shape, 1),
        "kept_strides": pad_to_4d(kept.strides, 0),
        "reduced_shape": pad_to_4d(reduced.shape, 1),
        "reduced_strides": pad_to_4d(reduced.strides, 0),
    }


def split_axes(spec: Spec, axes: Sequence[int]) -> tuple[Spec, Spec]:
    """Return the axes kept and those reduced; neighbouring axes with one stride are merged."""
    groups: list[Spec] = []
    for wanted in (False, True):
        chosen = [a for a in range(len(spec.shape)) if (a in axes) == wanted]
        shape = tuple(spec.shape[a] for a in chosen)
        strides = tuple(spec.strides[a] for a in chosen)
        merged = merged_axes(Spec(shape, spec.dtype, strides))
        groups.append(Spec(tuple(m[0] for m in merged), spec.dtype, tuple(m[1] for m in merged)))
    return groups[0], groups[1]


def threads_alone(kept: Spec, reduced: Spec, part: int) -> bool:
    """Return whether one thread reduces each output: few values, or neighbours of other outputs."""
    if reduced.size < FEW or part < FEW:
        return True
    # Then neighbouring threads read neighbouring values.
    return reduced.strides[-1] != 1 and kept.strides[-1:] == (1,)


def _parts(length: int, part: int) -> int:
    return -(-length // part) if length else 1


def _arrange(x: Node, axes: Sequence[int]) -> tuple[Node, Sequence[int]]:
    """Return `x` and the axes to fold; a copy with the kept axes first if strides do not fit."""
    if all(len(part.shape) <= AXES for part in split_axes(x.spec, axes)):
        return x, axes
    kept = [a for a in range(len(x.spec.shape)) if a not in axes]
    dense = contiguous(permute(x, *kept, *axes))
    return dense, range(len(kept), len(x.spec.shape))


def fold(
    x: Node, kind: str, axes: Sequence[int], divisor: float = 1.0, centre: Node | None = None
) -> Node:
    """Fold axes of a tensor in as many stages as necessary.

    Parameters
    ----------
    x, kind, axes, divisor, centre
        See `reduce`; `x` has up to eight axes of any strides.

    Returns
    -------
    (outputs, 1), of the type that `reduce` gives.
    """
    x, axes = _arrange(x, axes)
    kept, reduced = split_axes(x.spec, axes)
    part = THREAD_PART if threads_alone(kept, reduced, GROUP_PART) else GROUP_PART
    # Twice a part in one stage is less than a second dispatch.
    if reduced.size <= 2 * part:
        whole = reduced.size or 1
        return reduce(x, centre, kind=kind, axes=axes, part=whole, divisor=divisor)
    parts = reduce(x, centre, kind=kind, axes=axes, part=part)
    # Squares are taken in the first stage only.
    return fold(parts, "sum" if kind == "squares" else kind, (1,), divisor)


# Sums of floats are in f64 here, so that they tell how exact a device's are.
NUMPY_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.add.reduce,
    # NumPy begins with 0.0, which loses the sign of -0.0.
    "running_sum": partial(np.add.reduce, initial=-0.0),
    "squares": np.add.reduce,
    "prod": np.multiply.reduce,
    "logaddexp": np.logaddexp.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
}
_KINDS = {"f": np.dtype("f8"), "i": np.dtype("i4"), "u": np.dtype("u4"), "b": np.dtype("u4")}


def numpy_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that values of a type are folded in."""
    return dtype if dtype.kind in "iu" and dtype.itemsize == 8 else _KINDS[dtype.kind]
