"""What the formats share: a quantiser's signature, f16 scales, packed bits, weights of errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.files.quantize.search import Floats, total

Bytes = NDArray[np.uint8]
# Values (n, block), importances of the same shape or None, mean square of each value's row (n, 1).
Quantiser = Callable[[Floats, Floats | None, Floats | None], Bytes]


def f16_bytes(scales: Floats) -> Bytes:
    """Scales (n,) as f16, (n, 2)."""
    return scales.astype("<f2").view(np.uint8).reshape(-1, 2)


def read_f16(stored: Bytes) -> Floats:
    """Scales (n,) that `f16_bytes` stored."""
    return stored.view("<f2")[:, 0].astype(np.float32)


def in_groups(values: Floats, size: int) -> Floats:
    """(n, block) as columns (size, groups of a block · n)."""
    count, block = values.shape
    turned = values.reshape(count, block // size, size).transpose(2, 1, 0)
    return np.ascontiguousarray(turned).reshape(size, -1)


def in_blocks(quants: Floats | Bytes, count: int) -> Bytes:
    """Columns of whole numbers as (count, block), uint8: the way back from `in_groups`."""
    size = len(quants)
    return quants.astype(np.uint8).reshape(size, -1, count).transpose(2, 1, 0).reshape(count, -1)


def pack_bits(bits: int, *parts: Bytes) -> Bytes:
    """Numbers of so many bits in one byte, the first lowest."""
    made = parts[0].copy()
    for index, part in enumerate(parts):
        made |= part << np.uint8(bits * index)
    return made


def nibbles(values: Bytes) -> Bytes:
    """The lower four bits."""
    return values & np.uint8(15)


def pairs(quants: Bytes, span: int) -> Bytes:
    """Four bits a value: value i and value ``i + span / 2`` of each `span` share a byte."""
    parts = quants.reshape(len(quants), -1, 2, span // 2)
    return pack_bits(4, parts[:, :, 0], parts[:, :, 1]).reshape(len(quants), -1)


def bits2(quants: Bytes) -> Bytes:
    """Two bits a value: values i, i + 32, i + 64 and i + 96 of each 128 share a byte."""
    parts = quants.reshape(len(quants), -1, 4, 32)
    return pack_bits(2, *(parts[:, :, i] for i in range(4))).reshape(len(quants), -1)


def bit_planes(bits: NDArray[np.bool]) -> Bytes:
    """A bit a value, (n, 256) to (n, 32): bit j of byte i is that of value ``32 · j + i``."""
    return np.packbits(bits.reshape(len(bits), 8, 32), axis=1, bitorder="little")[:, 0]


def error_weights(importance: Floats, values: Floats, mean_square: Floats) -> Floats:
    """Importance times the root of mean and own square: what the error of a value counts."""
    return importance * np.sqrt(mean_square + values * values)


def squares(values: Floats) -> Floats:
    """Sum of squares of each row, (n, 1), in order."""
    turned = np.ascontiguousarray(values.T)
    return total(turned * turned)[:, None]
