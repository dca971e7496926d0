"""Element types of arrays: their names, kinds and limits, and their promotion.

Promotion is the table of the array API standard, with the types of a GPU: defaults are float32 and
int32, and Python's numbers take the type of the array that they meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from wgpu_backend.dtypes import (
    BF16,
    BOOL,
    COMPLEX64,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    SIGNED,
    U8,
    U16,
    U32,
    U64,
    UNSIGNED,
    DType,
    as_dtype,
)
from wgpu_backend.errors import DTypeError

bool_, uint8, uint16, uint32, uint64 = BOOL, U8, U16, U32, U64
int8, int16, int32, int64 = I8, I16, I32, I64
float16, bfloat16, float32, float64, complex64 = F16, BF16, F32, F64, COMPLEX64

_KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (BOOL,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": (*SIGNED, *UNSIGNED),
    "real floating": (F16, BF16, F32, F64),
    "complex floating": (COMPLEX64,),
}
_KINDS["numeric"] = (*_KINDS["integral"], *_KINDS["real floating"], COMPLEX64)
INTEGERS, FLOATING = _KINDS["integral"], _KINDS["real floating"]
Scalar = bool | int | float | complex


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a type is of a kind: a name of the array API, a type, or a tuple of them."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)  # pyright: ignore[reportUnknownVariableType]
    own = as_dtype(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return own in _KINDS[kind]
    return own == as_dtype(kind)


@cache
def promote(a: DType, b: DType) -> DType:
    """Return the type that two arrays are promoted to.

    Raises
    ------
    DTypeError
        No type holds the values of both, for example of u64 and i8.
    """
    if a == b:
        return a
    for kind in (COMPLEX64, F64, F32):
        if kind in (a, b):
            return kind
    floats = [d for d in (a, b) if d in FLOATING]
    # Neither f16 nor bf16 holds the other; a float of any width wins over integers.
    if floats:
        return floats[0] if len(floats) == 1 else F32
    integers = [d for d in (a, b) if d != BOOL]
    if len(integers) == 1:
        return integers[0]
    return _wider(a, b)


def _wider(a: DType, b: DType) -> DType:
    """Return the smallest integer type that holds both."""
    if (a in SIGNED) == (b in SIGNED):
        return max(a, b, key=lambda d: d.block_nbytes)
    # A signed type holds an unsigned one if it has more bytes.
    signed, unsigned = (a, b) if a in SIGNED else (b, a)
    fitting = [
        d
        for d in SIGNED
        if d.block_nbytes >= signed.block_nbytes and d.block_nbytes > unsigned.block_nbytes
    ]
    if not fitting:
        raise DTypeError(f"{a} and {b}: no integer type holds both; cast one with astype")
    return fitting[0]


def promote_scalar(dtype: DType, value: Scalar) -> DType:
    """Return the type that a Python number and an array of a type are promoted to."""
    if isinstance(value, bool) or dtype in FLOATING or dtype == COMPLEX64:
        return COMPLEX64 if isinstance(value, complex) else dtype
    if isinstance(value, int):
        return I32 if dtype == BOOL else dtype
    return COMPLEX64 if isinstance(value, complex) else F32


def default_dtype(values: np.dtype[Any]) -> DType:
    """Return the type of an array made of Python's numbers."""
    return {"b": BOOL, "i": I32, "u": U32, "f": F32, "c": COMPLEX64}[values.kind]


def result_type(*operands: Any) -> DType:
    """Return the type that arrays, types and Python's numbers are promoted to."""
    types = [getattr(o, "dtype", o) for o in operands if not isinstance(o, Scalar)]
    if not types:
        raise DTypeError("result_type: only numbers, needs an array or a type among them")
    found = as_dtype(types[0])
    for other in types[1:]:
        found = promote(found, as_dtype(other))
    for value in operands:
        if isinstance(value, Scalar):
            found = promote_scalar(found, value)
    return found


def can_cast(source: Any, target: Any) -> bool:
    """Return whether the promotion table converts one type to another without change."""
    a, b = as_dtype(getattr(source, "dtype", source)), as_dtype(target)
    try:
        return promote(a, b) == b
    except DTypeError:
        return False


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Limits of a floating type; `finfo` makes one."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """Limits of an integer type; `iinfo` makes one."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(kind: Any) -> FloatInfo:
    """Return the limits of a floating type, or of that of an array."""
    dtype = as_dtype(getattr(kind, "dtype", kind))
    if dtype == BF16:
        # NumPy has no limits of bfloat16: 8 bits of exponent, 7 of mantissa.
        largest = float.fromhex("0x1.fep127")
        return FloatInfo(16, 2.0**-7, largest, -largest, 2.0**-126, BF16)
    # As NumPy: limits of a complex type are those of its parts.
    dtype = F32 if dtype == COMPLEX64 else dtype
    if dtype not in FLOATING or dtype.numpy is None:
        raise DTypeError(f"finfo: {dtype}, needs a floating type")
    info = np.finfo(dtype.numpy.name)  # pyright: ignore[reportArgumentType, reportCallIssue]
    eps, largest, least = float(info.eps), float(info.max), float(info.min)
    return FloatInfo(int(info.bits), eps, largest, least, float(info.smallest_normal), dtype)


def iinfo(kind: Any) -> IntegerInfo:
    """Return the limits of an integer type, or of that of an array."""
    dtype = as_dtype(getattr(kind, "dtype", kind))
    if dtype not in INTEGERS or dtype.numpy is None:
        raise DTypeError(f"iinfo: {dtype}, needs an integer type")
    info = np.iinfo(dtype.numpy.name)
    return IntegerInfo(info.bits, int(info.max), int(info.min), dtype)
