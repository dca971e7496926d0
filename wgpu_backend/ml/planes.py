"""How weights lie on a device: blocks taken apart into aligned planes, bit for bit as many.

GGUF blocks have odd sizes (18, 34, 210 bytes), so a kernel that reads them stitches words together.
Here the quants of 32 weights become one or two 16-byte vectors and the scales a plane of their own.
``shaders/quant/NAME.wgsl`` reads the planes that this file makes; both name them alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ModelError

Bytes = NDArray[np.uint8]
Planes = dict[str, Bytes]
_LOW, _NIBBLE = np.uint8(15), np.uint8(4)  # Python's integers would widen the types


def planes(dtype: DType, blocks: Bytes) -> Planes:
    """Take blocks apart.

    Parameters
    ----------
    dtype : DType
    blocks : (n, block_nbytes), uint8

    Returns
    -------
    dict
        Plane name to (n, bytes per block), uint8; the name is empty for types that are left as
        they are.
    """
    split = _SPLITS.get(dtype.name)
    return {"": blocks} if split is None else split(blocks)


def plane_nbytes(dtype: DType) -> dict[str, int]:
    """Bytes per block in each plane."""
    empty = np.zeros((1, dtype.block_nbytes), np.uint8)
    return {name: plane.shape[1] for name, plane in planes(dtype, empty).items()}


def nonfinite_blocks(dtype: DType, blocks: Bytes) -> int:
    """Count blocks with a scale or a minimum, or for plain floats a value, that is NaN or infinite.

    Parameters
    ----------
    dtype : DType
    blocks : (n, block_nbytes), uint8
        For plain types a block is one value.
    """
    field = _FLOATS.get(dtype.name)
    if field is None or not len(blocks):
        return 0
    words = np.ascontiguousarray(blocks[:, field.where].view(field.word))
    if not _any_reaches(words.reshape(-1), field.infinity):
        return 0
    magnitudes = words & words.dtype.type(field.infinity)
    return int(np.count_nonzero((magnitudes == field.infinity).any(axis=-1)))


def require_finite(label: str, bad: int, blocks: int) -> None:
    """Refuse a weight with `bad` of its `blocks` counted by `nonfinite_blocks`.

    Raises
    ------
    ModelError
        There are any.
    """
    if bad:
        raise ModelError(
            f"{label}: {bad} of {blocks} blocks have a NaN or infinite scale or value, "
            f"needs finite ones"
        )


def _any_reaches(words: NDArray[Any], infinity: int) -> bool:
    """Whether any float of these bits is infinite or NaN, a cache's worth of them at a time."""
    sign = words.dtype.itemsize * 8 - 1
    mask = words.dtype.type((1 << sign) - 1)
    return any(
        (words[start : start + _SCAN] & mask).max() >= infinity
        for start in range(0, len(words), _SCAN)
    )


def _q4_0(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 2:], "scales": blocks[:, :2]}


def _q4_1(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 4:], "scales": blocks[:, :4]}


def _q5_0(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 6:], "high": blocks[:, 2:6], "scales": blocks[:, :2]}


def _q5_1(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 8:], "high": blocks[:, 4:8], "scales": blocks[:, :4]}


def _q4_k(blocks: Bytes) -> Planes:
    return {"quants": _k_quants(blocks[:, 16:]), "scales": blocks[:, :16]}


def _q5_k(blocks: Bytes) -> Planes:
    # Bit s of byte l is the fifth bit of value l of sub-block s.
    bits = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    high = np.packbits(bits, axis=-1, bitorder="little").reshape(len(blocks), 32)
    return {"quants": _k_quants(blocks[:, 48:]), "high": high, "scales": blocks[:, :16]}


def _q6_k(blocks: Bytes) -> Planes:
    count = len(blocks)
    low = blocks[:, :128].reshape(count, 2, 2, 32)
    low = np.concatenate([low & _LOW, low >> _NIBBLE], axis=2).reshape(count, 8, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(count, 2, 1, 32) >> shifts) & 3
    high = high.reshape(count, 8, 2, 4, 4) << shifts
    return {
        "quants": _nibbles(low),
        "high": np.bitwise_or.reduce(high, axis=3).reshape(count, 64),
        "scales": blocks[:, 192:208],
        "supers": blocks[:, 208:],
    }


def _k_quants(quants: Bytes) -> Bytes:
    """Nibbles of a K-quant: 32 bytes hold one sub-block low and the next high."""
    pairs = quants.reshape(len(quants), 4, 1, 32)
    return _nibbles(
        np.concatenate([pairs & _LOW, pairs >> _NIBBLE], axis=2).reshape(len(quants), 8, 32)
    )


def _nibbles(values: Bytes) -> Bytes:
    """Pack groups of 32 four-bit values as Q4_0 does: value i low, value i + 16 high."""
    packed = values[..., :16] | (values[..., 16:] << _NIBBLE)
    return packed.reshape(len(values), -1)


_SPLITS: dict[str, Callable[[Bytes], Planes]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q4_0,  # likewise a scale and then the quants
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}


@dataclass(frozen=True, slots=True)
class _Field:
    """Floats of a block: which of its bytes, as what words, and the bits of infinity."""

    where: slice
    word: str
    infinity: int


_SCAN = 1 << 16  # words whose masked copy stays in a core's cache
_HALF, _TWO_HALVES = _Field(slice(0, 2), "<u2", 0x7C00), _Field(slice(0, 4), "<u2", 0x7C00)
_FLOATS = {
    "f32": _Field(slice(0, 4), "<u4", 0x7F800000),
    "f16": _HALF,
    "bf16": _Field(slice(0, 2), "<u2", 0x7F80),
    "q4_0": _HALF,
    "q4_1": _TWO_HALVES,
    "q5_0": _HALF,
    "q5_1": _TWO_HALVES,
    "q8_0": _HALF,
    "q4_k": _TWO_HALVES,
    "q5_k": _TWO_HALVES,
    "q6_k": _Field(slice(208, 210), "<u2", 0x7C00),
}
