"""NumPy twins of `wgpu_backend.ops.sampling.radix`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.sorting import keys_of
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.sampling.radix import KEY_BITS, Digit


def _keys(x: Array, shift: int, descending: bool) -> Array:
    """Keys of values, of pairs or of words, u32."""
    if shift == 0:
        return keys_of(np.ascontiguousarray(x), descending)
    return x[..., 0] if x.ndim == 3 else x


def _columns(x: Array, shift: int) -> Array:
    if shift == 0:
        return np.broadcast_to(np.arange(x.shape[1], dtype=np.uint32), x.shape)
    return x[..., 1] if x.ndim == 3 else x & np.uint32((1 << shift) - 1)


def _digits(keys: Array, shift: int, bits: int) -> Array:
    return (keys >> np.uint32(shift)) & np.uint32((1 << bits) - 1)


@twin
def radix_count(x: Array, *, shift: int, bits: int, descending: bool) -> Array:
    """Count the digits in each chunk."""
    digits = _digits(_keys(x, shift, descending), shift, bits)
    chunk = Digit(shift, bits).chunk
    starts = range(0, digits.shape[1], chunk)
    counts = [
        [np.bincount(row[s : s + chunk], minlength=1 << bits) for s in starts] for row in digits
    ]
    shape = (len(digits), len(starts), 1 << bits)
    return np.array(counts, np.int32).reshape(shape).swapaxes(1, 2).reshape(len(digits), -1)


@twin
def radix_scatter(x: Array, ends: Array, *, shift: int, bits: int, descending: bool) -> Array:
    """Sort by one digit; `ends` says nothing that is not in `x`."""
    keys, columns = _keys(x, shift, descending), _columns(x, shift)
    order = np.argsort(_digits(keys, shift, bits), axis=1, kind="stable")
    keys, columns = (np.take_along_axis(a, order, axis=1) for a in (keys, columns))
    done = shift + bits
    if done == KEY_BITS:
        return columns
    if x.shape[1] > 1 << done:
        return np.stack([keys, columns], axis=-1)
    return keys & ~np.uint32((1 << done) - 1) | columns
