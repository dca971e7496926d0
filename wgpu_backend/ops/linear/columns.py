"""Checks of a product's columns: rows of `x` in each form that a `Prologue` has."""

from __future__ import annotations

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ops.check import require, require_rank
from wgpu_backend.ops.linear.attributes import Prologue
from wgpu_backend.ops.linear.f16_groups import ROW_TAIL, f16_columns_spec, f16_spec, is_planar
from wgpu_backend.ops.linear.normed import GROUP, square_count
from wgpu_backend.ops.linear.q8 import PLANAR, ROW, WORDS, rounded_spec
from wgpu_backend.ops.linear.q16 import q16_spec


def check_columns(x: Node, weight: Node, prologue: Prologue) -> Shape:
    """Check rows of x against a weight, and return the leading axes of x.

    Raises
    ------
    ShapeError
        Rows are not as the prologue says, or not as long as those of the weight.
    """
    k = weight.spec.shape[-1]
    if prologue.in_bytes:
        return _columns_in_q8(x, k, prologue)
    if prologue.form == "q16":
        return _columns_in_q16(x, k)
    if prologue.in_f16:
        return _columns_in_f16(x, weight)
    if prologue.form == "f16_rows":
        return _columns_in_f16_rows(x, k)
    if prologue.form == "f16_columns":
        return _columns_in_f16_columns(x, k)
    return _columns_in_f32(x, k, prologue)


def _columns_in_f16_rows(x: Node, k: int) -> Shape:
    """Return the leading axes of x, whose rows are f16 values and an exponent."""
    require_rank("linear", "x", x, 1)
    require(
        x.spec.shape[-1] == k + ROW_TAIL,
        ShapeError,
        f"linear: rows of x have {x.spec.shape[-1]} values, rows of weight have {k}; needs x of "
        f"{k + ROW_TAIL}, from f16_rows",
    )
    return x.spec.shape[:-1]


def _columns_in_f16_columns(x: Node, k: int) -> Shape:
    """Return the leading axes of x, f16 and transposed: values of one k are adjacent."""
    require_rank("linear", "x", x, 1)
    columns = x.spec.shape[:-1]
    wanted = f16_columns_spec(columns, k)
    require(
        x.spec.shape == wanted.shape and not x.spec.offset,
        ShapeError,
        f"linear: x is {x.spec.shape} from {x.spec.offset} on, rows of weight have {k} values; "
        f"needs x of {wanted.shape} from f16_columns, from 0 on",
    )
    return columns


def _columns_in_f32(x: Node, k: int, prologue: Prologue) -> Shape:
    """Return the leading axes of x, whose rows are f32 values."""
    require_rank("linear", "x", x, 1)
    squares = prologue.eps is not None and not prologue.norm
    require_rows("linear", x, k, square_count(k) if squares else 0)
    return x.spec.shape[:-1]


def require_rows(op_name: str, x: Node, k: int, squares: int = 0) -> None:
    """Check that rows of x have the length of a weight's, plus `squares` for a norm."""
    appended = f" and {squares} squares of a norm" if squares else ""
    require(
        x.spec.shape[-1] == k + squares,
        ShapeError,
        f"{op_name}: rows of x have {x.spec.shape[-1]} values, rows of weight have {k}{appended}",
    )


def _columns_in_q8(x: Node, k: int, prologue: Prologue) -> Shape:
    """Return the leading axes of x, whose rows are groups of 8-bit values, perhaps in planes."""
    require_rank("linear", "x", x, 2)
    parts, planar = prologue.parts, _is_planar(x)
    shape = x.spec.shape
    columns = shape[1:-2] if planar else shape[: -1 - parts]
    wanted = rounded_spec(columns, k // GROUP, planar, parts)
    groups = f"{parts}, {k // GROUP}, {WORDS}" if parts > 1 else f"{k // GROUP}, {WORDS}"
    require(
        shape == wanted.shape and not (planar and x.spec.offset),
        ShapeError,
        f"linear: x is {shape}, rows of weight have {k} values; needs x of (..., {groups}), or in "
        "planes",
    )
    return columns


def _columns_in_q16(x: Node, k: int) -> Shape:
    """Return the leading axes of x, whose rows are groups of sixteen-bit values, in planes."""
    require_rank("linear", "x", x, 3)
    columns = x.spec.shape[1:-2]
    wanted = q16_spec(columns, k // GROUP)
    require(
        x.spec.shape == wanted.shape and not x.spec.offset,
        ShapeError,
        f"linear: x is {x.spec.shape} from {x.spec.offset} on, rows of weight have {k} values; "
        f"needs x of {wanted.shape} in sixteen bits, from 0 on",
    )
    return columns


def _columns_in_f16(x: Node, weight: Node) -> Shape:
    """Return the leading axes of x, whose rows are groups of f16 values, in planes for blocks."""
    require_rank("linear", "x", x, 2)
    dtype, k = weight.spec.dtype, weight.spec.shape[-1]
    columns = x.spec.shape[1:-2] if is_planar(dtype) else x.spec.shape[:-2]
    wanted = f16_spec(columns, k // GROUP, is_planar(dtype))
    require(
        x.spec.shape == wanted.shape and not x.spec.offset,
        ShapeError,
        f"linear: x is {x.spec.shape} from {x.spec.offset} on, the weight {dtype} "
        f"{weight.spec.shape}; needs x of {wanted.shape} in f16 by groups, from 0 on",
    )
    return columns


def _is_planar(x: Node) -> bool:
    # Groups in planes end in vectors of 4 words, others in all 12 words of a group.
    return len(x.spec.shape) > 2 and x.spec.shape[-1] != WORDS


def column_snippet(x: Node) -> str:
    """Return the import that reads groups of eight-bit values, either in planes or in rows."""
    return PLANAR if _is_planar(x) else ROW
