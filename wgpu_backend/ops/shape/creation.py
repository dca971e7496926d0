"""Tensors from nothing: arange and random_normal, made where they are used."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wgpu_backend.dtypes import BF16, F32, I32, DType, held
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Launch
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, is_finite, require, vec4s
from wgpu_backend.ops.op import op
from wgpu_backend.ops.rows.bits import bits_of


@op(trusted=True)
def arange(*, start: float, stop: float, step: float = 1.0, dtype: DType = F32) -> Launch:
    """Values from `start` in steps, up to and without `stop`.

    Parameters
    ----------
    start, stop, step : float
        `step` is not zero.
    dtype : DType
        f32, f16, bf16 or i32; i32 takes whole numbers only.

    Returns
    -------
    (n,), with n as NumPy's arange has it.

    Raises
    ------
    ShapeError
        `step` is zero.
    DTypeError
        The type is another or holds no value so large, or i32 and a number is not whole.
    """
    for name, value in (("start", start), ("stop", stop), ("step", step)):
        require(is_finite(value), DTypeError, f"arange: {name} is {value!r}, needs a finite number")
    require(
        step != 0, ShapeError, f"arange: from {start} to {stop} in steps of {step}, needs a step"
    )
    require(dtype in (*FLOATS, I32), DTypeError, f"arange: {dtype}, needs f32, f16, bf16 or i32")
    whole = all(float(v).is_integer() for v in (start, stop, step))
    require(
        whole or dtype != I32, DTypeError, f"arange: {start}, {stop}, {step} in i32, needs integers"
    )
    number = I32 if dtype == I32 else F32
    count = max(0, math.ceil((stop - start) / step))
    if count:
        ends = np.asarray([start, start + (count - 1) * step])
        held("arange", ends, F32 if dtype == BF16 else dtype)
    return Launch(
        Spec.dense((count,), dtype),
        {},
        threads=vec4s(count),
        params={
            "size": count,
            "start": _bits(start, number) if count else 0,
            "step": _bits(step, number) if count > 1 else 0,
        },
        choices={"Value": number.name},
        work=4 * count,
    )


def _bits(value: float, number: DType) -> int:
    return int(value) % 2**32 if number == I32 else bits_of(value, number)


@op(trusted=True)
def random_normal(
    *, shape: Sequence[int], dtype: DType = F32, loc: float = 0.0, scale: float = 1.0, key: int = 0
) -> Launch:
    """Normally distributed numbers, the same for the same key on every device.

    Bits come from Threefry-2x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
    3") with 20 rounds over a counter, numbers from Box & Muller 1958. The bits are equal to the
    last one everywhere; the numbers differ by what rounding of f32 does.

    Parameters
    ----------
    shape : sequence of int
    dtype : DType
        f32, f16 or bf16.
    loc, scale : float
        Mean and standard deviation.
    key : int
        Of 64 bits.

    Raises
    ------
    DTypeError
        The type is another.
    """
    require(dtype in FLOATS, DTypeError, f"random_normal: {dtype}, needs f32, f16 or bf16")
    out = Spec.dense(shape, dtype)
    return Launch(
        out,
        {},
        threads=vec4s(out.size),
        params={
            "size": out.size,
            "key_low": key & 0xFFFFFFFF,
            "key_high": key >> 32 & 0xFFFFFFFF,
            "loc": loc,
            "scale": scale,
        },
        work=16 * out.size,
    )
