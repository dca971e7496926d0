"""NumPy twins of `wgpu_backend.ops.sorting`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin

BLOCK = 1024


def _keys(x: Array, descending: bool) -> Array:
    """u32 in the order of the values, NaN above all."""
    bits = x.astype(x.dtype.newbyteorder("=")).view(np.uint32)
    sign = np.uint32(0x80000000)
    if x.dtype == np.int32:
        keys = bits ^ sign
    else:
        keys = np.where(bits > sign, ~bits, bits | sign)
        keys = np.where(np.isnan(x), np.uint32(0xFFFFFFFF), keys)
    return ~keys if descending else keys


def _sorted(pairs: Array, run: int) -> Array:
    """Sort each run of (key, column)."""
    parts = [
        np.take_along_axis(part, np.argsort(part[..., :1], axis=1, kind="stable"), axis=1)
        for part in np.split(pairs, range(run, pairs.shape[1], run), axis=1)
    ]
    done = np.concatenate(parts, axis=1)
    return done[..., 1] if run >= pairs.shape[1] else done


@twin
def sort_blocks(x: Array, *, descending: bool) -> Array:
    """Sort blocks of each row."""
    columns = np.broadcast_to(np.arange(x.shape[1], dtype=np.uint32), x.shape)
    return _sorted(np.stack([_keys(np.ascontiguousarray(x), descending), columns], axis=-1), BLOCK)


@twin
def merge_runs(pairs: Array, *, run: int) -> Array:
    """Merge the runs of each row two and two."""
    return _sorted(pairs, 2 * run)
