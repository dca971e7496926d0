"""Bit masks of tokens, and their effect on logits on the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint32]
# In f32: the sign, an exponent of ones, and a fraction of zeros.
_MINUS_INFINITY = np.uint32(0xFF80_0000)


def mask_words(tokens: int) -> int:
    """Return the number of 32-bit words of a mask of `tokens` tokens."""
    return -(-tokens // 32)


def apply_mask(logits: NDArray[np.float32], mask: Mask) -> NDArray[np.float32]:
    """Set logits to minus infinity where a mask has no bit.

    Parameters
    ----------
    logits : (..., vocab), f32
        Logits of each token.
    mask : (..., words), u32
        Bit ``t % 32`` of word ``t // 32`` is token t's; at least as many bits as logits.

    Returns
    -------
    (..., vocab), f32.
    """
    little = np.ascontiguousarray(mask, "<u4").view(np.uint8)
    bits = np.unpackbits(little, axis=-1, count=logits.shape[-1], bitorder="little")
    # With bit operations, as on a device: a branch per value is nine times slower.
    # 1 becomes 0, and 0 wraps around to all ones, which selects minus infinity below.
    out = bits.astype(np.uint32) - np.uint32(1)
    words = np.ascontiguousarray(logits, np.float32).view(np.uint32)
    return ((words & ~out) | (out & _MINUS_INFINITY)).view(np.float32)
