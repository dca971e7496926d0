"""Element types: their bytes, NumPy type, and number in GGUF files, by name.

A `DType` is a block of `block` elements in `block_nbytes` bytes. For plain types the block is one
element. `snippet` names the WGSL file in `shaders/formats/load`, `store` or `dequant` that reads
it; `ggml` is the type's number in GGUF files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import DTypeError


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Parameters
    ----------
    name : str
        Lower-case name, as in messages: ``f32``, ``q4_k``.
    block : int
        Elements in a block; 1 for plain types.
    block_nbytes : int
        Bytes in a block.
    ggml : int or None
        The type's number in GGUF files.
    numpy : np.dtype or None
        How the host holds one element; None for block formats.
    """

    name: str
    block: int
    block_nbytes: int
    ggml: int | None
    numpy: np.dtype[np.generic] | None

    def __str__(self) -> str:
        return self.name

    @property
    def quantised(self) -> bool:
        """Whether elements live in blocks that share scales."""
        return self.block > 1

    def nbytes(self, elements: int) -> int:
        """Return the bytes of `elements` elements, a multiple of the block."""
        if elements % self.block:
            raise DTypeError(f"{self.name}: {elements} elements, needs a multiple of {self.block}")
        return elements // self.block * self.block_nbytes


def _plain(name: str, numpy: str, ggml: int | None) -> DType:
    dtype = np.dtype(numpy)
    return DType(name, 1, dtype.itemsize, ggml, dtype)


F32 = _plain("f32", "<f4", 0)
F16 = _plain("f16", "<f2", 1)
BF16 = _plain("bf16", "<u2", 30)  # NumPy has no bfloat16: the bits travel as u16
I32 = _plain("i32", "<i4", 26)
U32 = _plain("u32", "<u4", None)
# Types that WGSL has no arithmetic for: stored exactly, moved by views and copies, computed after
# a cast.
BOOL = _plain("bool", "?", None)
U8 = _plain("u8", "<u1", None)
I8 = _plain("i8", "<i1", 24)
U16 = _plain("u16", "<u2", None)
I16 = _plain("i16", "<i2", 25)
U64 = _plain("u64", "<u8", None)
I64 = _plain("i64", "<i8", 27)
F64 = _plain("f64", "<f8", 28)
COMPLEX64 = _plain("complex64", "<c8", None)
SIGNED = (I8, I16, I32, I64)
UNSIGNED = (U8, U16, U32, U64)
# Types without blocks, in the order in which errors list them.
PLAIN = (F32, F16, BF16, I32, U32, BOOL, U8, I8, U16, I16, U64, I64, F64, COMPLEX64)
Q4_0 = DType("q4_0", 32, 18, 2, None)
Q4_1 = DType("q4_1", 32, 20, 3, None)
Q5_0 = DType("q5_0", 32, 22, 6, None)
Q5_1 = DType("q5_1", 32, 24, 7, None)
Q8_0 = DType("q8_0", 32, 34, 8, None)
# As libggml has it: f16 scale and sum. gguf-py's table still says 40 bytes, of when they were f32.
Q8_1 = DType("q8_1", 32, 36, 9, None)
Q2_K = DType("q2_k", 256, 84, 10, None)
Q3_K = DType("q3_k", 256, 110, 11, None)
Q4_K = DType("q4_k", 256, 144, 12, None)
Q5_K = DType("q5_k", 256, 176, 13, None)
Q6_K = DType("q6_k", 256, 210, 14, None)
Q8_K = DType("q8_k", 256, 292, 15, None)
IQ2_XXS = DType("iq2_xxs", 256, 66, 16, None)
IQ2_XS = DType("iq2_xs", 256, 74, 17, None)
IQ3_XXS = DType("iq3_xxs", 256, 98, 18, None)
IQ1_S = DType("iq1_s", 256, 50, 19, None)
IQ4_NL = DType("iq4_nl", 32, 18, 20, None)
IQ3_S = DType("iq3_s", 256, 110, 21, None)
IQ2_S = DType("iq2_s", 256, 82, 22, None)
IQ4_XS = DType("iq4_xs", 256, 136, 23, None)
IQ1_M = DType("iq1_m", 256, 56, 29, None)
TQ1_0 = DType("tq1_0", 256, 54, 34, None)
TQ2_0 = DType("tq2_0", 256, 66, 35, None)
MXFP4 = DType("mxfp4", 32, 17, 39, None)
NVFP4 = DType("nvfp4", 64, 36, 40, None)
Q1_0 = DType("q1_0", 128, 18, 41, None)
Q2_0 = DType("q2_0", 64, 18, 42, None)

ALL: tuple[DType, ...] = (
    F32, F16, BF16, I32, U32, BOOL, U8, I8, U16, I16, U64, I64, F64, COMPLEX64, Q1_0, Q2_0, Q4_0,
    Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS,
    IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4,
)  # fmt: skip
# Formats that a device can write, by plain rounding.
QUANTISABLE: tuple[DType, ...] = (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0)
_BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY = {d.numpy.name: d for d in ALL if d.numpy is not None and d != BF16}
_BY_NUMPY["bfloat16"] = BF16
_BY_GGML = {dtype.ggml: dtype for dtype in ALL if dtype.ggml is not None}


def named(name: str) -> DType:
    """Look a type up by its name, any case.

    Raises
    ------
    DTypeError
        No type has that name.
    """
    try:
        return _BY_NAME[name.lower()]
    except KeyError:
        raise DTypeError(f"dtype {name!r}: unknown, needs one of {', '.join(_BY_NAME)}") from None


def as_dtype(value: object) -> DType:
    """Return the type for a DType, a name of ours or NumPy's, or a NumPy type.

    Parameters
    ----------
    value : DType, str, np.dtype or type
        ``"f16"``, ``"float16"``, ``np.float16`` and ``np.dtype("f2")`` are one; a name that both
        have is ours: ``"u8"`` has eight bits.

    Raises
    ------
    DTypeError
        No type has this name.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        return _BY_NUMPY.get(value.lower()) or named(value)
    is_scalar = isinstance(value, type) and issubclass(value, np.generic | bool)
    if isinstance(value, np.dtype) or is_scalar:
        name = np.dtype(cast("Any", value)).name
        return _BY_NUMPY.get(name) or named(name)
    raise DTypeError(f"dtype {value!r}: needs a name such as 'f32', a DType or a NumPy type")


def convert_values(subject: str, values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Convert values to the form in which the host stores a type, rounded for floats.

    Parameters
    ----------
    subject : str
        Begins the message.
    dtype : DType
        With a NumPy type.

    Raises
    ------
    DTypeError
        A value is beyond the range of the type, has a fraction that would be lost, or is no number;
        or all have imaginary parts and the type has none.
    """
    kind = dtype.numpy
    assert kind is not None
    if values.dtype == kind:
        return values
    if values.dtype.kind not in "biufc":
        raise DTypeError(f"{subject}: values of NumPy's {values.dtype}, needs numbers")
    if values.dtype.kind == "c" and kind.kind != "c":
        raise DTypeError(
            f"{subject}: values of NumPy's {values.dtype}, {dtype} has no imaginary part"
        )
    with np.errstate(all="ignore"):
        made = values.astype(kind)
    lost = _find_lost(values, made)
    if lost.any():
        place = np.unravel_index(int(np.argmax(lost)), values.shape)
        raise DTypeError(
            f"{subject}: {values[place]} at {tuple(map(int, place))} does not fit {dtype}, which "
            f"holds {_range(kind)}"
        )
    return made


def _find_lost(values: NDArray[Any], made: NDArray[Any]) -> NDArray[np.bool]:
    """Return a mask of the values that a conversion did not round to the nearest number."""
    if made.dtype.kind in "fc":
        return np.isfinite(values) & ~np.isfinite(made)
    # NumPy compares no bool with 2⁶⁴ - 1.
    if "b" in (made.dtype.kind, values.dtype.kind):
        return np.zeros(values.shape, np.bool)
    info = np.iinfo(made.dtype.name)
    # The largest of 64 bits is no float, the one after it is.
    if values.dtype.kind == "f":
        inside = (values >= float(info.min)) & (values < float(info.max) + 1)
        return ~(inside & (np.trunc(values) == values))
    # NumPy compares with integers that an array cannot hold, too.
    return (values < info.min) | (values > info.max)


def _range(kind: np.dtype[Any]) -> str:
    if kind.kind in "iu":
        return f"whole numbers {np.iinfo(kind.name).min} to {np.iinfo(kind.name).max}"
    largest = f"{np.finfo(kind.name).max:.6g}"
    return f"-{largest} to {largest}"


def from_ggml(number: int) -> DType | None:
    """Return the type with that number in GGUF files, or None."""
    return _BY_GGML.get(number)


def f32_to_bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Round f32 values to the nearest bf16, ties to even, and return the bits as u16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def bf16_to_f32(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Widen bf16 bits, held as u16, to f32."""
    # Without axes a shift makes a number of an array.
    return np.asarray(bits.astype(np.uint32) << 16).view(np.float32)


def value_bits(value: float, dtype: DType) -> int:
    """Return the bits of a number in a plain type, rounded to nearest even."""
    if dtype == BF16:
        return int(f32_to_bf16(np.array(value, np.float32)).item())
    assert dtype.numpy is not None
    return int.from_bytes(np.array(value, dtype.numpy).tobytes(), "little")
