"""A tensor with one value everywhere."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BF16, BOOL, F32, DType, convert_values, value_bits
from wgpu_backend.errors import DTypeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import require, vec4s
from wgpu_backend.ops.index.bits import moving, require_plain
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(trusted=True)
def fill(x: Node, value: float) -> Launch:
    """Return a tensor like another, with one value everywhere.

    Parameters
    ----------
    x : (...), any plain dtype
        Its values are not read.
    value : float
        Rounded to the type; for integers a whole number within their range, for bool 0 or 1.

    Returns
    -------
    Like `x`, dense.

    Raises
    ------
    DTypeError
        The type cannot hold `value`.
    """
    require_plain("fill", "x", x)
    _require_held(value, x.spec.dtype)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    high, low = divmod(value_bits(value, out.dtype), 2**32)
    return Launch(
        out,
        {},
        threads=vec4s(out.size),
        params={"size": out.size, "low": low, "high": high},
        choices=moving(out.dtype),
        work=out.nbytes,
    )


@fill.reference
def fill_reference(x: Array, value: float) -> Array:
    """Fill with one value."""
    return np.full(x.shape, value, x.dtype)


def _require_held(value: float, dtype: DType) -> None:
    """Raise DTypeError if a type cannot hold a number."""
    assert dtype.numpy is not None
    # BF16 is stored as u16 on the host, yet takes fractions.
    if dtype == BF16 or dtype.numpy.kind not in "biu":
        convert_values("fill", np.asarray(value), F32 if dtype == BF16 else dtype)
        return
    low, high = (0, 1) if dtype == BOOL else _range(dtype.numpy)
    require(
        low <= value <= high and int(value) == value,
        DTypeError,
        f"fill: {value} in a tensor of {dtype}, needs a whole number {low} to {high}",
    )


def _range(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    info = np.iinfo(dtype.name)
    return info.min, info.max
