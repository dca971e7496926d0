"""Results of NIR's instructions, for one number per thread.

Values are arrays with an entry for each thread of a work group: bool for one bit, else unsigned of
as many bits. Ops that are missing here give an unknown value, which is right for what comes out of
memory and harmless for arithmetic that no address and no loop depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
TYPES: dict[int, type] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def _signed(x: Lanes) -> Lanes:
    return x.view(np.dtype(f"i{x.itemsize}"))


def _unsigned(x: Lanes) -> Lanes:
    return x.view(np.dtype(f"u{x.itemsize}"))


def _shift(by: Lanes, x: Lanes) -> Lanes:
    return by.astype(x.dtype) & x.dtype.type(8 * x.itemsize - 1)


def _floats(act: Callable[..., Lanes]) -> Callable[..., Lanes]:
    """Make an op of f32; other sizes are unknown."""

    def on_bits(*operands: Lanes) -> Lanes:
        if any(x.dtype != np.uint32 for x in operands):
            raise KeyError("only f32 is computed")
        return _bits(act(*(x.view(np.float32) for x in operands)))

    return on_bits


def _bits(x: Lanes) -> Lanes:
    return x if x.dtype == np.bool_ else x.astype(np.float32).view(np.uint32)


def _signed_pair(act: Callable[[Lanes, Lanes], Lanes]) -> Callable[[Lanes, Lanes], Lanes]:
    def on_bits(a: Lanes, b: Lanes) -> Lanes:
        found = act(_signed(a), _signed(b))
        return found if found.dtype == np.bool_ else _unsigned(found)

    return on_bits


def _multiply_high(a: Lanes, b: Lanes) -> Lanes:
    return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def _bits_from(x: Lanes, offset: Lanes, count: Lanes) -> Lanes:
    mask = (np.uint64(1) << (count & np.uint32(31)).astype(np.uint64)) - np.uint64(1)
    return (x >> _shift(offset, x)) & mask.astype(x.dtype)


def _byte(x: Lanes, index: Lanes) -> Lanes:
    return (x >> (index.astype(x.dtype) * x.dtype.type(8))) & x.dtype.type(255)


def _half(x: Lanes, index: Lanes) -> Lanes:
    return (x >> (index.astype(x.dtype) * x.dtype.type(16))) & x.dtype.type(0xFFFF)


def _bit(x: Lanes, index: Lanes) -> Lanes:
    return ((x >> _shift(index, x)) & x.dtype.type(1)) != 0


def _to_unsigned(x: Lanes) -> Lanes:
    return np.clip(np.nan_to_num(x.view(np.float32)), 0, 2**32 - 1).astype(np.uint32)


def _to_signed(x: Lanes) -> Lanes:
    low, high = -(2**31), 2**31 - 1
    return np.clip(np.nan_to_num(x.view(np.float32)).astype("f8"), low, high).astype(
        np.int32
    ).view(np.uint32)  # fmt: skip


def _extended(x: Lanes, bits: int) -> Lanes:
    return _unsigned(_signed(x).astype(np.dtype(f"i{bits // 8}")))


def _low(x: Lanes) -> Lanes:
    return x & x.dtype.type(0xFFFFFF)


OPS: dict[str, Callable[..., Lanes]] = {
    "mov": lambda x: x,
    "iadd": lambda a, b: a + b,
    "isub": lambda a, b: a - b,
    "imul": lambda a, b: a * b,
    "imul_32x16": lambda a, b: a * _unsigned(_signed(b.astype(np.uint16)).astype(np.int32)),
    "umul_32x16": lambda a, b: a * (b & np.uint32(0xFFFF)),
    "umul24": lambda a, b: _low(a) * _low(b),
    "umul24_relaxed": lambda a, b: a * b,
    "umad24": lambda a, b, c: _low(a) * _low(b) + c,
    "umad24_relaxed": lambda a, b, c: a * b + c,
    "umul_high": _multiply_high,
    "udiv": lambda a, b: a // np.maximum(b, 1),
    "umod": lambda a, b: a % np.maximum(b, 1),
    "ineg": lambda a: a.dtype.type(0) - a,
    "inot": lambda a: ~a,
    "iand": lambda a, b: a & b,
    "ior": lambda a, b: a | b,
    "ixor": lambda a, b: a ^ b,
    "ishl": lambda a, b: a << _shift(b, a),
    "ushr": lambda a, b: a >> _shift(b, a),
    "ishr": lambda a, b: _unsigned(_signed(a) >> _signed(_shift(b, a))),
    "umin": np.minimum,
    "umax": np.maximum,
    "imin": _signed_pair(np.minimum),
    "imax": _signed_pair(np.maximum),
    "ult": lambda a, b: a < b,
    "uge": lambda a, b: a >= b,
    "ilt": _signed_pair(lambda a, b: a < b),
    "ige": _signed_pair(lambda a, b: a >= b),
    "ieq": lambda a, b: a == b,
    "ine": lambda a, b: a != b,
    "bcsel": lambda c, a, b: np.where(c, a, b),
    "bitnz": _bit,
    "bitz": lambda x, index: ~_bit(x, index),
    "ubfe": _bits_from,
    "extract_u8": _byte,
    "extract_u16": _half,
    "u2f32": lambda a: _bits(a.astype(np.float32)),
    "i2f32": lambda a: _bits(_signed(a).astype(np.float32)),
    "f2u32": _to_unsigned,
    "f2i32": _to_signed,
    "fadd": _floats(lambda a, b: a + b),
    "fsub": _floats(lambda a, b: a - b),
    "fmul": _floats(lambda a, b: a * b),
    "ffma": _floats(lambda a, b, c: a * b + c),
    "frcp": _floats(lambda a: np.float32(1) / a),
    "fmin": _floats(np.fmin),
    "fmax": _floats(np.fmax),
    "ffloor": _floats(np.floor),
    "fceil": _floats(np.ceil),
    "ftrunc": _floats(np.trunc),
    "flt": _floats(lambda a, b: a < b),
    "fge": _floats(lambda a, b: a >= b),
    "feq": _floats(lambda a, b: a == b),
    "fneu": _floats(lambda a, b: a != b),
    "pack_64_2x32_split": lambda a, b: a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32)),
    "unpack_64_2x32_split_x": lambda a: a.astype(np.uint32),
    "unpack_64_2x32_split_y": lambda a: (a >> np.uint64(32)).astype(np.uint32),
    **{f"b2i{bits}": lambda a, t=TYPES[bits]: a.astype(t) for bits in (8, 16, 32, 64)},
    **{f"u2u{bits}": lambda a, t=TYPES[bits]: a.astype(t) for bits in (8, 16, 32, 64)},
    **{f"i2i{bits}": lambda a, n=bits: _extended(a, n) for bits in (8, 16, 32, 64)},
    "b2b1": lambda a: a != 0,
    "i2b1": lambda a: a != 0,
}  # fmt: skip


def compute(op: str, operands: Sequence[Lanes | None]) -> Lanes | None:
    """Compute one component of an op's result; None if it is unknown.

    Parameters
    ----------
    op : str
    operands : sequence of (threads,) or None
    """
    act = OPS.get(op)
    if act is None:
        return None
    known = [x for x in operands if x is not None]
    if len(known) < len(operands):
        return _despite_unknown(op, known)
    try:
        with np.errstate(all="ignore"):
            return act(*known)
    except (KeyError, TypeError):
        return None


def _despite_unknown(op: str, known: Sequence[Lanes]) -> Lanes | None:
    """Return a result that does not depend on the unknown operand: zero times it, false and it."""
    if op in ("imul", "iand", "umin") and len(known) == 1 and not known[0].any():
        return known[0]
    if op == "ior" and len(known) == 1 and known[0].dtype == np.bool_ and known[0].all():
        return known[0]
    return None
