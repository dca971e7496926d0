"""F16 weights as textures hold them: halves of which shifts and a mask make f32.

A rasteriser makes f32 of an f16 in ten instructions, most of them for narrow lanes. Sign, exponent
and fraction of a half, put where a float has its own, are a float that is too small by a power of
two, which products put right at their ends (`shaders/lib/raised.wgsl`). Subnormal halves would be
subnormal floats, which devices may take for zero. So exponents are counted anew here, from the
smallest of all halves, 2^-24: as 1 to 31 they reach below 128, and every such half is a normal
float or zero. Weights with values of 128 or more stay as they are, in buffers.

Half of the power of two goes to what weights are multiplied with, half to the sum, which leaves
room at both ends of f32: products below 2^-75 count as zero, factors from 2^76 on as infinite.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.layouts.super_blocks import Bytes

RAISED = 51  # half of the power of two that a half lacks there, see shaders/lib/raised
LEAST = 2 * RAISED - 126  # exponent of the smallest half, which reads as 2^-126
BELOW = np.float16(128).view(np.uint16)  # bits of a half grow with its magnitude
_MAGNITUDE, _EXPONENT = np.uint16(0x7FFF), np.uint16(0x7C00)
_NORMAL = np.uint16((-14 - LEAST) << 10)  # from a normal half's exponent to its new one
_AT_ONCE = 1 << 20


def fit(rows: Bytes) -> bool:
    """Whether all values of (n, row bytes) are below 128, and none NaN."""
    halves = rows.reshape(-1).view(np.uint16)
    starts = range(0, len(halves), _AT_ONCE)
    return all((halves[i : i + _AT_ONCE] & _MAGNITUDE).max() < BELOW for i in starts)


def recounted(rows: Bytes) -> Bytes:
    """Halves that `fit` accepts, with exponents counted from 2^-24.

    Parameters
    ----------
    rows : (n, row_nbytes), uint8

    Returns
    -------
    (n, row_nbytes), uint8
    """
    halves = rows.view(np.uint16).reshape(-1)
    recount = halves + _NORMAL
    small = np.flatnonzero((halves & _EXPONENT) == 0)
    recount[small] = _of_small(halves[small])
    return recount.view(np.uint8).reshape(rows.shape)


def _of_small(halves: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Zeros and subnormal halves: fractions shifted until their first bit is the one in front."""
    fraction = (halves & _MAGNITUDE).astype(np.float32)  # times 2^-24
    bits = fraction.view(np.uint32)
    exponent = (bits >> 23) - 126  # 1 for 2^-24
    code = (exponent << 10) | ((bits >> 13) & 0x3FF)
    return np.where(fraction > 0, code, 0).astype(np.uint16) | (halves & ~_MAGNITUDE)
