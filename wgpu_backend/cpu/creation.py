"""NumPy twins of `wgpu_backend.ops.shape.creation`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.dtypes import BF16, BOOL, F16, F32, DType

FLOATS = (F32, F16, BF16)

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


@twin
def arange(*, start: float, stop: float, step: float = 1.0, dtype: DType = F32) -> Array:
    """Values from `start` in steps."""
    count = max(0, int(np.ceil((stop - start) / step)))
    if dtype not in FLOATS:
        return int(start) + np.arange(count, dtype=np.int64) * int(step)
    return np.float32(start) + np.arange(count, dtype=np.float32) * np.float32(step)


@twin
def linspace(
    *, start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DType = F32
) -> Array:
    """Values at equal distances."""
    return np.linspace(start, stop, num, endpoint).astype(np.float32)


@twin
def full(*, shape: Sequence[int], value: complex, dtype: DType = F32) -> Array:
    """One value everywhere."""
    kind = np.float32 if dtype == BF16 else dtype.numpy
    return np.full(tuple(shape), bool(value) if dtype == BOOL else value, kind)


@twin
def eye(*, rows: int, cols: int, k: int = 0, dtype: DType = F32) -> Array:
    """Ones on a diagonal."""
    return np.eye(rows, cols, k, np.float32 if dtype == BF16 else dtype.numpy)


@twin
def random_normal(
    *, shape: Sequence[int], dtype: DType = F32, loc: float = 0.0, scale: float = 1.0, key: int = 0
) -> Array:
    """Box–Muller over Threefry; the pair of counter i makes values 2 i and 2 i + 1."""
    size = int(np.prod(shape, dtype=np.int64))
    counters = np.arange(-(-size // 2), dtype=np.uint32)
    a, b = threefry(key, counters)
    # 24 bits each, the first never zero.
    u = (a >> 8).astype(np.float32) * np.float32(2**-24) + np.float32(2**-25)
    angle = (b >> 8).astype(np.float32) * np.float32(2**-24) * np.float32(2 * np.pi)
    radius = np.sqrt(np.float32(-2) * np.log(u))
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(-1)
    return (pairs[:size] * np.float32(scale) + np.float32(loc)).reshape(tuple(shape))


def threefry(
    key: int, counters: NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Two random words for each counter; twenty rounds of Threefry-2x32."""
    k0, k1 = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32 & 0xFFFFFFFF)
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    a, b = counters + k0, np.full_like(counters, k1)
    with np.errstate(over="ignore"):
        for group in range(5):
            for turn in _ROTATIONS[group % 2]:
                a = a + b
                b = (b << np.uint32(turn)) | (b >> np.uint32(32 - turn))
                b = a ^ b
            a = a + keys[(group + 1) % 3]
            b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b
