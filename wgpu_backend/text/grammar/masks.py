"""Masks of tokens, a bit each, and what they leave of logits on the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint32]
_MINUS_INFINITY = np.uint32(0xFF80_0000)


def words_of(tokens: int) -> int:
    """Words that a mask of so many tokens has."""
    return -(-tokens // 32)


def masked(logits: NDArray[np.float32], mask: Mask) -> NDArray[np.float32]:
    """Logits with minus infinity where a mask has no bit.

    Parameters
    ----------
    logits : (..., vocab), f32
    mask : (..., words), u32
        Bit ``t % 32`` of word ``t // 32`` is token t's; at least as many bits as logits.

    Returns
    -------
    (..., vocab), f32.
    """
    little = np.ascontiguousarray(mask, "<u4").view(np.uint8)
    bits = np.unpackbits(little, axis=-1, count=logits.shape[-1], bitorder="little")
    # By bits, as on a device: a choice of numbers mispredicts and takes nine times as long.
    out = bits.astype(np.uint32) - np.uint32(1)
    words = np.ascontiguousarray(logits, np.float32).view(np.uint32)
    return ((words & ~out) | (out & _MINUS_INFINITY)).view(np.float32)
