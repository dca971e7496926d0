"""Blocks of 256 values -1, 0 and 1 under one f16 scale, the largest magnitude: TQ1_0 and TQ2_0."""

from __future__ import annotations

import numpy as np

from wgpu_backend.files.quantize.blocks import Bytes, bits2, f16_bytes
from wgpu_backend.files.quantize.search import Floats, half_away, reciprocal


def tq1_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Five values a byte, as a fraction of 256 in base 3; of the last 16 values four a byte."""
    scale, trits = _trits(values)
    first = trits[:, :160].reshape(-1, 5, 32)
    second = trits[:, 160:240].reshape(-1, 5, 16)
    last = np.concatenate(
        [trits[:, 240:].reshape(-1, 4, 4), np.zeros((len(values), 1, 4), "u2")], 1
    )
    return np.hstack([*(_base_3(part) for part in (first, second, last)), f16_bytes(scale)])


def tq2_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Two bits a value."""
    scale, trits = _trits(values)
    return np.hstack([bits2(trits.astype(np.uint8)), f16_bytes(scale)])


def _trits(values: Floats) -> tuple[Floats, np.ndarray]:
    """Scale (n,), and values rounded to 0, 1 and 2, (n, 256), u16."""
    scale = np.abs(values).max(axis=1)
    rounded = half_away(values * reciprocal(scale)[:, None])
    return scale, (np.fmin(np.fmax(rounded, -1), 1) + 1).astype(np.uint16)


def _base_3(trits: np.ndarray) -> Bytes:
    digits = trits * np.array([81, 27, 9, 3, 1], np.uint16)[:, None]
    # Rounded up, so that decoding by multiplications with 3 finds each digit above the point.
    return ((digits.sum(axis=1, dtype=np.uint16) * np.uint16(256) + 242) // 243).astype(np.uint8)
