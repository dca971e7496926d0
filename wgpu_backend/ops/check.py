"""Operand checks and small arithmetic that ops share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.errors import BackendError, DTypeError, ShapeError
from wgpu_backend.graph.node import Groups, Node
from wgpu_backend.graph.spec import Shape, Spec, extents

Axes = int | Sequence[int] | None
FLOATS = (F32, F16, BF16)
MAX_GROUPS = 65535
# Characters of a value in a message.
LONG = 40


def require(condition: bool, error: type[BackendError], message: str) -> None:
    """Raise `error` with `message` unless `condition` holds."""
    if not condition:
        raise error(message)


def describe(value: object) -> str:
    """Describe a value of the wrong type in a few words, for an error message."""
    text = " ".join(repr(value).split())
    return text if len(text) < LONG else f"of type {type(value).__name__}"


def refuse_array(op: str, name: str, value: object) -> None:
    """Raise DTypeError if an operand is an array of `wgpu_backend.array` instead of its node."""
    if isinstance(getattr(value, "node", None), Node):
        raise DTypeError(
            f"{op}: {name} is an array, ops take its node: wx.Array.looking_at({op}(x.node, …)) is "
            "an array again"
        )


def require_tensor(op: str, name: str, value: object) -> None:
    """Raise DTypeError unless an operand is a tensor."""
    refuse_array(op, name, value)
    if not isinstance(value, Node):
        raise DTypeError(f"{op}: {name} is {describe(value)}, needs a tensor; from_numpy makes one")


def require_number(op: str, name: str, value: object) -> None:
    """Raise DTypeError unless an option is a number."""
    if not isinstance(value, int | float | np.number):
        raise DTypeError(f"{op}: {name} is {describe(value)}, needs a number")


def require_dtype(op: str, name: str, node: Node, allowed: tuple[DType, ...]) -> None:
    """Raise DTypeError unless the operand's type is one of `allowed`."""
    require_tensor(op, name, node)
    if node.spec.dtype not in allowed:
        wanted = ", ".join(d.name for d in allowed)
        raise DTypeError(f"{op}: {name} is {node.spec.dtype}, needs {wanted}; cast it first")


def is_finite(value: Any) -> bool:  # noqa: ANN401
    """Return whether a value is a number, and neither infinite nor NaN."""
    return isinstance(value, int | float | np.number) and math.isfinite(cast("float", value))


def require_row(op: str, name: str, row: Node, count: int) -> None:
    """Check that an operand is one row of f32."""
    require_dtype(op, name, row, (F32,))
    require(
        row.spec.shape == (count,),
        ShapeError,
        f"{op}: {name} is {row.spec.shape}, rows have {count} values",
    )


def require_rank(op: str, name: str, node: Node, low: int, high: int = 4) -> None:
    """Raise ShapeError unless the operand has `low` to `high` axes."""
    require_tensor(op, name, node)
    rank = len(node.spec.shape)
    if not low <= rank <= high:
        raise ShapeError(
            f"{op}: {name} is {node.spec.shape} with {rank} axes, needs {low} to {high}"
        )


def normalise_axes(name: str, spec: Spec, axes: Axes) -> tuple[int, ...]:
    """Return axes counted from the front; None means all of them."""
    if axes is None:
        return tuple(range(len(spec.shape)))
    listed = extents(f"{name}: axes", axes)
    found = tuple(spec.axis(a, name) for a in listed)
    require(
        len(set(found)) == len(found),
        ShapeError,
        f"{name}: axes {listed} name one of {len(spec.shape)} axes twice, need each once",
    )
    return found


def pad_to_4d(values: Shape, fill: int) -> tuple[int, int, int, int]:
    """Prepend `fill` to `values` until there are four."""
    padded = (fill,) * (4 - len(values)) + values
    return padded[0], padded[1], padded[2], padded[3]


def grid_for(groups: int) -> Groups:
    """Return a grid over x and y for this many work groups: one dimension holds at most 65,535.

    The shader calls ``group_index(group_id, groups)`` of ``lib/index/grid`` for the number of its
    work group; groups beyond the last have nothing to do.

    Returns
    -------
    (int, int, int)
        ``groups=`` of a Launch.
    """
    if groups <= MAX_GROUPS:
        return (max(groups, 1), 1, 1)
    rows = -(-groups // MAX_GROUPS)
    return (-(-groups // rows), rows, 1)


def ceil_div(count: int, each: int) -> int:
    """Return how many groups of `each` hold `count`: the quotient, rounded up."""
    return -(-count // each)


def vec4s(size: int) -> int:
    """Return the threads of a kernel whose threads take four values each."""
    return ceil_div(size, 4)


def row_count(spec: Spec) -> int:
    """Return the number of rows: the product of all extents but the last."""
    return spec.size // spec.shape[-1] if spec.size else 0
