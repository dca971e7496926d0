"""NumPy twins of `wgpu_backend.ops.random`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.cpu.transcendental import erfinv
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.dtypes import F32, I32, DType
from wgpu_backend.ops.random.draws import BELOW_ONE, OPEN_LOW, gaussian_range

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
Words = NDArray[np.uint32]


def threefry(key: Array, first: Words, second: Words) -> tuple[Words, Words]:
    """Two random words for each counter; twenty rounds of Threefry-2x32."""
    k0, k1 = (np.uint32(word) for word in key)
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(_PARITY))
    with np.errstate(over="ignore"):
        a, b = first + k0, second + k1
        for group in range(5):
            for turn in _ROTATIONS[group % 2]:
                a = a + b
                b = a ^ ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn)))
            a = a + keys[(group + 1) % 3]
            b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def words(key: Array, count: int) -> Words:
    """Random words, in pairs of one from each half."""
    half, odd = divmod(count, 2)
    places = np.arange(half, dtype=np.uint32)
    first, second = threefry(key, places, places + np.uint32(half + odd))
    middle, _ = threefry(key, np.full(odd, half, np.uint32), np.zeros(odd, np.uint32))
    return np.concatenate([first, middle, second])


def fractions(key: Array, shape: Sequence[int], dtype: DType = F32) -> Array:
    """Numbers from 0 up to 1, f32."""
    bits = words(key, math.prod(shape)).astype(np.float32) * np.float32(2**-32)
    return np.minimum(bits, np.float32(BELOW_ONE[dtype])).reshape(tuple(shape))


@twin
def random_bits(key: Array, shape: Sequence[int], width: int = 4) -> Array:
    """Random bits."""
    size = math.prod(shape)
    kind: np.dtype[Any] = np.dtype(f"u{width}")
    return words(key, -(-size * width // 4)).view(kind)[:size].reshape(tuple(shape))


@twin
def random_uniform(
    key: Array, shape: Sequence[int], dtype: DType = F32, *, low: float = 0.0, high: float = 1.0
) -> Array:
    """Uniform numbers."""
    ends = np.float32(low), np.float32(high)
    return fractions(key, shape, dtype) * (ends[1] - ends[0]) + ends[0]


@twin
def random_gaussian(
    key: Array,
    shape: Sequence[int],
    dtype: DType = F32,
    *,
    loc: float = 0.0,
    scale: float = 1.0,
    least: float = -math.inf,
    most: float = math.inf,
) -> Array:
    """Normally distributed numbers."""
    low, size = (np.float32(end) for end in gaussian_range(least, most))
    normal = math.sqrt(2) * erfinv(fractions(key, shape) * size + low)
    return np.clip(normal, least, most) * scale + loc


@twin
def random_gumbel(key: Array, shape: Sequence[int], dtype: DType = F32) -> Array:
    """Numbers of the Gumbel distribution."""
    with np.errstate(divide="ignore"):
        return -np.log(-np.log(fractions(key, shape).astype(np.float64)))


@twin
def random_laplace(
    key: Array, shape: Sequence[int], dtype: DType = F32, *, loc: float = 0.0, scale: float = 1.0
) -> Array:
    """Numbers of a Laplace distribution."""
    low = np.float32(OPEN_LOW)
    side: Array = (fractions(key, shape) * (np.float32(1) - low) + low).astype(np.float64)
    return np.sign(side) * np.log1p(-np.abs(side)) * scale + loc


@twin
def random_randint(
    key: Array, low: int, high: int, shape: Sequence[int] = (), dtype: DType = I32
) -> Array:
    """Random integers."""
    bits = words(key, math.prod(shape)).astype(np.uint64)
    return (bits * np.uint64(high - low) >> np.uint64(32)).astype(np.int64).reshape(
        tuple(shape)
    ) + low
