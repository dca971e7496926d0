"""Integer probabilities.

Two devices disagree about the last bits of `exp`, and a compiler may fuse or reorder float
additions; either moves the point where a running sum passes a threshold, and another token comes
out. So distances between logits become fixed-point numbers with one rounding that all devices
share, and from there on only integers are multiplied, shifted, added and compared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.uint64]

FEW = 256
# 256 weights of at most 2^23 add up to no more than a u32 holds.
FEW_BITS = 23
# 2^24 weights of at most 2^40 still fit a u64.
MANY_BITS = 40
FRACTION_BITS = 24
# 2^-f = 1 - f (C1 - f (C2 - f (…))) for f in [0, 1), in units of 2^-31; off by at most 2.2e-9.
ONE = 1 << 31
COEFFICIENTS = (1488521975, 515877768, 119164956, 20570151, 2736670, 233859)

# NumPy keeps an array unsigned only where the other operand is.
_UNIT, _WORD = np.uint64(1), np.uint64(32)


def weights(logits: NDArray[np.float32], sharpness: float) -> Weights:
    """Return weights proportional to probabilities: ``2^-(sharpness · (largest - logit))``.

    Parameters
    ----------
    logits : (n,), float32
        The first is the largest, and finite.
    sharpness : float
        A float32 number.

    Returns
    -------
    (n,), uint64
        The first is 2^23, or 2^40 when there are more than 256.
    """
    bits = FEW_BITS if len(logits) <= FEW else MANY_BITS
    with np.errstate(over="ignore"):
        # Weights beyond 2^-63 are 0 in any case, and the fixed point below has no room for more.
        powers = np.minimum((logits[0] - logits) * np.float32(sharpness), np.float32(63))
    fixed = (powers * np.float32(1 << FRACTION_BITS)).astype(np.uint64)
    whole, fraction = np.divmod(fixed, np.uint64(1 << FRACTION_BITS))
    powers_of_fractions = _exp2_negative(fraction * np.uint64(1 << (32 - FRACTION_BITS)))
    shift = np.minimum(whole, np.uint64(bits)) + np.uint64(63 - bits)
    half = _UNIT << (shift - _UNIT)
    rounded = ((powers_of_fractions << _WORD) + half) >> shift
    # A shift is at most 63, so what is further away is cleared here.
    rounded[whole > bits] = 0
    return rounded


def _exp2_negative(fraction: Weights) -> Weights:
    """Return 2^-f in units of 2^-31, for f in units of 2^-32."""
    value = np.full_like(fraction, COEFFICIENTS[-1])
    for coefficient in (*COEFFICIENTS[-2::-1], ONE):
        value = np.uint64(coefficient) - (value * fraction >> _WORD)
    return value


def share(total: int, fraction: int) -> int:
    """Return a fraction of a total, in units of 2^-32, rounded down."""
    return total * fraction >> 32
