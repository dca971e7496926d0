"""New tensors, filled on the device: arange, linspace, full, eye, random_normal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wgpu_backend.dtypes import (
    BF16,
    BOOL,
    F32,
    I8,
    I16,
    I32,
    I64,
    PLAIN,
    U8,
    U16,
    U32,
    U64,
    DType,
    convert_values,
    value_bits,
)
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Launch
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, is_finite, require, vec4s
from wgpu_backend.ops.index.bits import moving
from wgpu_backend.ops.op import op
from wgpu_backend.ops.random.bits import threefry
from wgpu_backend.ops.reference import Array

SIGNED, UNSIGNED = (I32, I16, I8, I64), (U32, U16, U8, U64)
# A diagonal beyond every matrix: shaders compare with i32.
FAR = 2**31 - 1


@op(trusted=True)
def arange(*, start: float, stop: float, step: float = 1.0, dtype: DType = F32) -> Launch:
    """Make values from `start` to `stop`, excluded, in steps.

    Parameters
    ----------
    start, stop, step : float
        `step` is not zero.
    dtype : DType
        f32, f16, bf16 or an integer; integers take whole numbers only, and compute in 32 bits.

    Returns
    -------
    (n,), with n as NumPy's arange has it.

    Raises
    ------
    ShapeError
        `step` is zero.
    DTypeError
        The type is another or holds no value so large, or an integer and a number is not whole.
    """
    for name, value in (("start", start), ("stop", stop), ("step", step)):
        require(is_finite(value), DTypeError, f"arange: {name} is {value!r}, needs a finite number")
    require(
        step != 0, ShapeError, f"arange: from {start} to {stop} in steps of {step}, needs a step"
    )
    require(
        dtype in (*FLOATS, *SIGNED, *UNSIGNED),
        DTypeError,
        f"arange: {dtype}, needs f32, f16, bf16 or an integer",
    )
    whole = all(float(v).is_integer() for v in (start, stop, step))
    require(
        whole or dtype in FLOATS,
        DTypeError,
        f"arange: {start}, {stop}, {step} in {dtype}, needs integers",
    )
    number = F32 if dtype in FLOATS else I32 if dtype in SIGNED else U32
    count = max(0, math.ceil((stop - start) / step))
    if count:
        ends = np.asarray([start, start + (count - 1) * step])
        # The ends decide whether all values fit: those in between lie between them.
        convert_values("arange", ends, {BF16: F32, I64: I32, U64: U32}.get(dtype, dtype))
    return Launch(
        Spec.dense((count,), dtype),
        {},
        threads=vec4s(count),
        params={
            "size": count,
            "start": _bits(start, number) if count else 0,
            # A step that is never taken may be beyond the type.
            "step": _bits(step, number) if count > 1 else 0,
        },
        choices={"Value": number.name},
        work=4 * count,
    )


@arange.reference
def arange_reference(*, start: float, stop: float, step: float = 1.0, dtype: DType = F32) -> Array:
    """Make values from `start` in steps."""
    count = max(0, int(np.ceil((stop - start) / step)))
    if dtype not in FLOATS:
        return int(start) + np.arange(count, dtype=np.int64) * int(step)
    return np.float32(start) + np.arange(count, dtype=np.float32) * np.float32(step)


def _bits(value: float, number: DType) -> int:
    # Negative integers wrap around in u32.
    return value_bits(value, number) if number == F32 else int(value) % 2**32


@op(trusted=True)
def linspace(
    *, start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DType = F32
) -> Launch:
    """Make values at equal distances from `start` to `stop`, both exact.

    Parameters
    ----------
    num : int
        How many; 0 or more.
    endpoint : bool
        The last value is `stop`; else it is one step away.
    dtype : DType
        f32, f16 or bf16.

    Returns
    -------
    (num,). Each half is counted from its own end, in f32.

    Raises
    ------
    ShapeError
        `num` is negative.
    DTypeError
        The type is another, or an end is no finite number.
    """
    for name, value in (("start", start), ("stop", stop)):
        require(
            is_finite(value), DTypeError, f"linspace: {name} is {value!r}, needs a finite number"
        )
    require(num >= 0, ShapeError, f"linspace: {num} values, needs 0 or more")
    require(dtype in FLOATS, DTypeError, f"linspace: {dtype}, needs f32, f16 or bf16")
    steps = max(num - 1 if endpoint else num, 1)
    return Launch(
        Spec.dense((num,), dtype),
        {},
        threads=vec4s(num),
        params={
            "size": num,
            "steps": steps,
            "start": value_bits(start, F32),
            "stop": value_bits(stop, F32),
            # Computed in f64, and rounded once.
            "step": value_bits((float(stop) - float(start)) / steps, F32),
        },
        work=4 * num,
    )


@linspace.reference
def linspace_reference(
    *, start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DType = F32
) -> Array:
    """Make values at equal distances."""
    return np.linspace(start, stop, num, endpoint).astype(np.float32)


@op(shader="ops/shape/fill", trusted=True)
def full(*, shape: Sequence[int], value: complex, dtype: DType = F32) -> Launch:
    """Fill a tensor with one value.

    Parameters
    ----------
    value : bool, int, float or complex
        Rounded to the type; for integers a whole number within their range.
    dtype : DType
        Any plain dtype.

    Raises
    ------
    DTypeError
        The type cannot hold `value`.
    """
    out = Spec.dense(shape, dtype)
    # Two words, for types of 64 bits.
    high, low = divmod(_held_bits("full", value, dtype), 2**32)
    return Launch(
        out,
        {},
        threads=vec4s(out.size),
        params={"size": out.size, "low": low, "high": high},
        choices=moving(dtype),
        work=out.nbytes,
    )


@full.reference
def full_reference(*, shape: Sequence[int], value: complex, dtype: DType = F32) -> Array:
    """Fill an array with one value."""
    # NumPy has no bf16.
    kind = np.float32 if dtype == BF16 else dtype.numpy
    return np.full(tuple(shape), bool(value) if dtype == BOOL else value, kind)


def _held_bits(name: str, value: complex, dtype: DType) -> int:
    """Return the bits of a number; raise DTypeError if the type cannot hold it."""
    require(dtype in PLAIN, DTypeError, f"{name}: {dtype}, needs a plain dtype")
    if dtype == BOOL:
        return int(bool(value))
    found = convert_values(name, np.asarray(value), F32 if dtype == BF16 else dtype)
    if dtype == BF16:
        return value_bits(float(found), dtype)
    return int.from_bytes(found.tobytes(), "little")


@op(trusted=True)
def eye(*, rows: int, cols: int, k: int = 0, dtype: DType = F32) -> Launch:
    """Make a matrix of zeros with ones on a diagonal.

    Parameters
    ----------
    k : int
        Which diagonal: 0 begins at the first value, above 0 they lie above it.
    dtype : DType
        Any plain dtype.

    Returns
    -------
    (rows, cols).
    """
    out = Spec.dense((rows, cols), dtype)
    high, low = divmod(_held_bits("eye", 1, dtype), 2**32)
    return Launch(
        out,
        {},
        threads=vec4s(out.size),
        params={
            "size": out.size,
            "cols": cols,
            "k": max(-FAR, min(int(k), FAR)),
            "low": low,
            "high": high,
        },
        choices=moving(dtype),
        work=out.nbytes,
    )


@eye.reference
def eye_reference(*, rows: int, cols: int, k: int = 0, dtype: DType = F32) -> Array:
    """Make a matrix of zeros with ones on a diagonal."""
    return np.eye(rows, cols, k, np.float32 if dtype == BF16 else dtype.numpy)


@op(trusted=True)
def random_normal(
    *, shape: Sequence[int], dtype: DType = F32, loc: float = 0.0, scale: float = 1.0, key: int = 0
) -> Launch:
    """Draw normal numbers, the same for the same key on every device.

    Bits come from Threefry-2x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")
    with 20 rounds over a counter, numbers from Box & Muller 1958. The bits are equal on every
    device; the numbers differ by the rounding of f32.

    Parameters
    ----------
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


@random_normal.reference
def random_normal_reference(
    *, shape: Sequence[int], dtype: DType = F32, loc: float = 0.0, scale: float = 1.0, key: int = 0
) -> Array:
    """Apply Box–Muller to Threefry; the pair of counter i makes values 2 i and 2 i + 1."""
    size = int(np.prod(shape, dtype=np.int64))
    counters = np.arange(-(-size // 2), dtype=np.uint32)
    words = np.array([key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF], np.uint32)
    a, b = threefry(words, counters, np.zeros_like(counters))
    # 24 bits each, the first never zero.
    u = (a >> 8).astype(np.float32) * np.float32(2**-24) + np.float32(2**-25)
    angle = (b >> 8).astype(np.float32) * np.float32(2**-24) * np.float32(2 * np.pi)
    radius = np.sqrt(np.float32(-2) * np.log(u))
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(-1)
    return (pairs[:size] * np.float32(scale) + np.float32(loc)).reshape(tuple(shape))
