"""Helpers that the block formats share: f16 scales, packed bits, weights of errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.files.quantize.search import Floats, total

Bytes = NDArray[np.uint8]
# From values (n, block), importances of the same shape or None, and mean squares of rows (n, 1).
Quantiser = Callable[[Floats, Floats | None, Floats | None], Bytes]


def f16_bytes(scales: Floats) -> Bytes:
    """Convert scales (n,) to f16 bytes, (n, 2)."""
    return scales.astype("<f2").view(np.uint8).reshape(-1, 2)


def read_f16(stored: Bytes) -> Floats:
    """Read scales (n,) that `f16_bytes` made."""
    return stored.view("<f2")[:, 0].astype(np.float32)


def in_groups(values: Floats, size: int) -> Floats:
    """Rearrange (n, block) so that each column is a group: (size, groups of a block · n)."""
    count, block = values.shape
    turned = values.reshape(count, block // size, size).transpose(2, 1, 0)
    return np.ascontiguousarray(turned).reshape(size, -1)


def in_blocks(quants: Floats | Bytes, count: int) -> Bytes:
    """Undo `in_groups` for whole numbers: (count, block), uint8."""
    size = len(quants)
    return quants.astype(np.uint8).reshape(size, -1, count).transpose(2, 1, 0).reshape(count, -1)


def pack_bits(bits: int, *parts: Bytes) -> Bytes:
    """Pack parts of `bits` bits each into one byte per element, the first part lowest."""
    made = parts[0].copy()
    for index, part in enumerate(parts):
        made |= part << np.uint8(bits * index)
    return made


def nibbles(values: Bytes) -> Bytes:
    """Return the lower four bits."""
    return values & np.uint8(15)


def pairs(quants: Bytes, span: int) -> Bytes:
    """Pack four bits per value: values i and ``i + span / 2`` of each `span` share a byte."""
    parts = quants.reshape(len(quants), -1, 2, span // 2)
    return pack_bits(4, parts[:, :, 0], parts[:, :, 1]).reshape(len(quants), -1)


def bits2(quants: Bytes) -> Bytes:
    """Pack two bits per value: values i, i + 32, i + 64 and i + 96 of each 128 share a byte."""
    parts = quants.reshape(len(quants), -1, 4, 32)
    return pack_bits(2, *(parts[:, :, i] for i in range(4))).reshape(len(quants), -1)


def bit_planes(bits: NDArray[np.bool]) -> Bytes:
    """Pack one bit per value, (n, 256) to (n, 32): bit j of byte i is value ``32 · j + i``'s."""
    return np.packbits(bits.reshape(len(bits), 8, 32), axis=1, bitorder="little")[:, 0]


def error_weights(importance: Floats, values: Floats, mean_square: Floats) -> Floats:
    """Return the weight of each value's error: importance · √(mean square + own square)."""
    return importance * np.sqrt(mean_square + values * values)


def squares(values: Floats) -> Floats:
    """Return the sum of squares of each row, (n, 1), added in order."""
    turned = np.ascontiguousarray(values.T)
    return total(turned * turned)[:, None]
