"""NumPy twins of `wgpu_backend.ops.sampling.sorting` and its `searching`."""

from __future__ import annotations

from typing import Literal

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


def keys_of(x: Array, descending: bool) -> Array:
    """Unsigned integers in the order of the values, NaN above all: u32, of 64 bits u64."""
    sign = np.uint32(0x80000000)
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        least = np.uint64(0 if x.dtype.kind == "u" else 1 << 63)
        keys = x.view(np.uint64) ^ least
    elif x.dtype.kind in "ub":
        keys = x.astype(np.uint32)
    elif x.dtype.kind == "i":
        keys = x.astype(np.int32).view(np.uint32) ^ sign
    else:
        bits = x.astype(np.float32).view(np.uint32)
        keys = np.where(bits > sign, ~bits, bits | sign)
        keys = np.where(np.isnan(x), np.uint32(0xFFFFFFFF), keys)
    return ~keys if descending else keys


@twin
def sort_rows(x: Array, *, descending: bool) -> Array:
    """Columns of each row in the order of their values."""
    keys = keys_of(np.ascontiguousarray(x), descending)
    return np.argsort(keys, axis=1, kind="stable").astype(np.int32)


@twin
def select_top_k(x: Array, *, k: int) -> Array:
    """Columns of the largest values of each row, in the order of columns."""
    return np.sort(sort_rows(x, descending=True)[:, :k], axis=1)


@twin
def values_of_blocks(x: Array, blocks: Array, *, length: int) -> Array:
    """Values of some blocks of each row, filled up with the lowest."""
    wide = x.astype({"i": np.int32, "f": np.float32}.get(x.dtype.kind, np.uint32))
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(wide.dtype.name).min
    whole = np.pad(wide, [(0, 0), (0, -x.shape[1] % length)], constant_values=lowest)
    in_blocks = whole.reshape(len(x), -1, length)
    return np.take_along_axis(in_blocks, blocks[:, :, None], axis=1).reshape(len(x), -1)


@twin
def columns_of_blocks(places: Array, blocks: Array, *, length: int) -> Array:
    """Columns of a row that places in its blocks are."""
    return np.take_along_axis(blocks, places // length, axis=1) * length + places % length


@twin
def searchsorted(x: Array, v: Array, side: Literal["left", "right"] = "left") -> Array:
    """Places that keep the order."""
    return np.searchsorted(keys_of(x, descending=False), keys_of(v, descending=False), side)
