"""Planes of the formats with super-blocks of 256 weights: K-quants, codebooks, ternary.

Quants are put into the order in which ``shaders/formats/dequant/NAME.wgsl`` reads 32 of them.
Scales keep their bits, regrouped where 32 weights would otherwise need several words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Planes = dict[str, Bytes]
# NumPy's, since Python's integers would widen the types.
BIT, BITS2, LOW, NIBBLE = np.uint8(1), np.uint8(3), np.uint8(15), np.uint8(4)
# Shifts of the four two-bit values of a byte.
_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


def nibbles(values: Bytes) -> Bytes:
    """Pack groups of 32 four-bit values as Q4_0 does: value i low, value i + 16 high."""
    packed = values[..., :16] | (values[..., 16:] << NIBBLE)
    return packed.reshape(len(values), -1)


def _bits2(values: Bytes) -> Bytes:
    """Pack groups of 32 two-bit values: value 4 · j + b of each 16 is bits 2 · j of byte b."""
    packed = values.reshape(*values.shape[:-1], 2, 4, 4) << _PAIRS
    return np.bitwise_or.reduce(packed, axis=-2).reshape(len(values), -1)


def _bits(values: Bytes) -> Bytes:
    """Pack groups of 32 bits into a word each, the first lowest."""
    return np.packbits(values, axis=-1, bitorder="little").reshape(len(values), -1)


def _unpacked_bits2(quants: Bytes) -> Bytes:
    """Unpack two-bit values of a K-quant: 32 bytes hold four groups of 32, the first lowest."""
    count = len(quants)
    return ((quants.reshape(count, -1, 1, 32) >> _PAIRS) & BITS2).reshape(count, -1, 32)


def _k_quants(quants: Bytes) -> Bytes:
    """Repack nibbles of a K-quant: 32 bytes hold one sub-block low and the next high."""
    pairs = quants.reshape(len(quants), 4, 1, 32)
    values = np.concatenate([pairs & LOW, pairs >> NIBBLE], axis=2)
    return nibbles(values.reshape(len(quants), 8, 32))


def _k_bits(mask: Bytes) -> Bytes:
    """Repack the high bits of a K-quant: bit s of byte l is that of value l of sub-block s."""
    return _bits((mask[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & BIT)


def _q2_k(blocks: Bytes) -> Planes:
    return {
        "quants": _bits2(_unpacked_bits2(blocks[:, 16:80])),
        "scales": blocks[:, :16],
        "supers": blocks[:, 80:],
    }


def _q3_k(blocks: Bytes) -> Planes:
    return {
        "quants": _bits2(_unpacked_bits2(blocks[:, 32:96])),
        "high": _k_bits(blocks[:, :32]),
        "scales": _q3_k_scales(blocks[:, 96:108]),
        "supers": blocks[:, 108:],
    }


def _q3_k_scales(packed: Bytes) -> Bytes:
    """Regroup twelve bytes: the low nibbles of 16 scales in order, then their high two bits."""
    low = np.concatenate([packed[:, :8] & LOW, packed[:, :8] >> NIBBLE], axis=1)
    high = ((packed[:, None, 8:] >> _PAIRS) & BITS2).reshape(-1, 4, 4)
    high = np.bitwise_or.reduce(high << _PAIRS[:, 0], axis=-1)
    return np.concatenate([low[:, ::2] | (low[:, 1::2] << NIBBLE), high], axis=1)


def _q4_k(blocks: Bytes) -> Planes:
    return {"quants": _k_quants(blocks[:, 16:]), "scales": blocks[:, :16]}


def _q5_k(blocks: Bytes) -> Planes:
    return {
        "quants": _k_quants(blocks[:, 48:]),
        "high": _k_bits(blocks[:, 16:48]),
        "scales": blocks[:, :16],
    }


def _q6_k(blocks: Bytes) -> Planes:
    count = len(blocks)
    low = blocks[:, :128].reshape(count, 2, 2, 32)
    low = np.concatenate([low & LOW, low >> NIBBLE], axis=2).reshape(count, 8, 32)
    return {
        "quants": nibbles(low),
        "high": _bits2(_unpacked_bits2(blocks[:, 128:192])),
        "scales": blocks[:, 192:208],
        "supers": blocks[:, 208:],
    }


def _q8_k(blocks: Bytes) -> Planes:
    # Sums of groups are not read by any kernel.
    return {"quants": blocks[:, 4:260], "supers": blocks[:, :4]}


def _iq1_s(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 2:34], "high": blocks[:, 34:], "supers": blocks[:, :2]}


def _iq1_m(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, :32], "high": blocks[:, 32:48], "scales": blocks[:, 48:]}


def iq1_m_scales(blocks: Bytes) -> Bytes:
    """Return the f16 scale of IQ1_M blocks, whose nibbles are the upper ones of four words."""
    words = blocks[:, 48:].view("<u2") >> np.uint16(12)
    nibble = np.array([0, 4, 8, 12], np.uint16)
    return np.bitwise_or.reduce(words << nibble, axis=1)[:, None].view(np.uint8)


def _iq2_xxs(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 2:], "supers": blocks[:, :2]}


def _iq2_xs(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 2:66], "scales": blocks[:, 66:], "supers": blocks[:, :2]}


def _iq2_s(blocks: Bytes) -> Planes:
    count = len(blocks)
    quants = blocks[:, 2:66].reshape(count, 2, 8, 4).swapaxes(1, 2).reshape(count, 64)
    high = blocks[:, 66:].reshape(count, 2, 8).swapaxes(1, 2).reshape(count, 16)
    return {"quants": quants, "scales": high, "supers": blocks[:, :2]}


def _iq3_xxs(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 2:66], "signs": blocks[:, 66:], "supers": blocks[:, :2]}


def _iq3_s(blocks: Bytes) -> Planes:
    return {
        "quants": blocks[:, 2:66],
        "signs": blocks[:, 74:106],
        "scales": np.concatenate([blocks[:, 66:74], blocks[:, 106:]], axis=1),
        "supers": blocks[:, :2],
    }


def _iq4_xs(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 8:], "scales": blocks[:, :8]}


def _tq1_0(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, :48], "high": blocks[:, 48:52], "supers": blocks[:, 52:]}


def _tq2_0(blocks: Bytes) -> Planes:
    return {"quants": _bits2(_unpacked_bits2(blocks[:, :64])), "supers": blocks[:, 64:]}


SPLITS: Mapping[str, Callable[[Bytes], Planes]] = {
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "q8_k": _q8_k,
    "iq1_s": _iq1_s,
    "iq1_m": _iq1_m,
    "iq2_xxs": _iq2_xxs,
    "iq2_xs": _iq2_xs,
    "iq2_s": _iq2_s,
    "iq3_xxs": _iq3_xxs,
    "iq3_s": _iq3_s,
    "iq4_xs": _iq4_xs,
    "tq1_0": _tq1_0,
    "tq2_0": _tq2_0,
}
