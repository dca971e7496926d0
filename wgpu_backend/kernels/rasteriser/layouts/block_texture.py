"""Layout `block_texture`: weights in blocks, in the order in which lanes of a rasteriser read them.

A CPU prefetches what one instruction reads in even steps, and the same few instructions read
every texel that a kernel loads. So all that eight lanes need, of four rows each, lies in the order
in which they load it, quants and scales alike: what the lanes load at once, a texel each, lies side
by side. ``shaders/kernels/rasteriser/block_texture/`` reads what this file makes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.capabilities import TEXEL_NBYTES, TEXEL_ROW_BITS
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.ops.layouts.layout import WeightLayout
from wgpu_backend.ops.layouts.planes import plane_nbytes, planes
from wgpu_backend.ops.layouts.super_blocks import Bytes

NAME = "block_texture"
LANES, LANE_ROWS = 8, 4
TILE_ROWS = LANES * LANE_ROWS
# Values of a group.
_GROUP = 32


@dataclass(frozen=True, slots=True)
class TexelOrder:
    """The order in which lanes load the planes of a format.

    Parameters
    ----------
    groups : int
        Groups of 32 values that share a head: the planes with their scales.
    head, group : tuple of str
        Planes of the head, and of each group after it.
    """

    groups: int
    head: tuple[str, ...]
    group: tuple[str, ...]

    def nbytes(self, dtype: DType, name: str) -> int:
        """Return the bytes of a plane that a lane loads for a head, or for a group."""
        whole = plane_nbytes(dtype)[name] * self.groups * _GROUP // dtype.block
        return whole if name in self.head else whole // self.groups

    def texels(self, dtype: DType, name: str) -> int:
        """Return the texels of a plane that a lane loads for its rows."""
        return -(-LANE_ROWS * self.nbytes(dtype, name) // TEXEL_NBYTES)

    def loads(self, dtype: DType) -> tuple[int, int]:
        """Return how many texels a lane loads for a head, and for a group."""
        head, group = (
            sum(self.texels(dtype, name) for name in names) for names in (self.head, self.group)
        )
        return head, group


_SCALED, _QUANTS = ("scales",), ("quants",)
_HIGH = (*_QUANTS, "high")
_SUPERS = (*_SCALED, "supers")
# The groups that share a head: a whole super-block of the K formats, four blocks of the others.
ORDERS = {
    "q4_0": TexelOrder(4, _SCALED, _QUANTS),
    "q4_1": TexelOrder(4, _SCALED, _QUANTS),
    "q5_0": TexelOrder(4, _SCALED, _HIGH),
    "q5_1": TexelOrder(4, _SCALED, _HIGH),
    "q8_0": TexelOrder(4, _SCALED, _QUANTS),
    "iq4_nl": TexelOrder(4, _SCALED, _QUANTS),
    "mxfp4": TexelOrder(4, _SCALED, _QUANTS),
    "q2_k": TexelOrder(8, _SUPERS, _QUANTS),
    "q3_k": TexelOrder(8, _SUPERS, _HIGH),
    "q4_k": TexelOrder(8, _SCALED, _QUANTS),
    "q5_k": TexelOrder(8, _SCALED, _HIGH),
    "q6_k": TexelOrder(8, _SUPERS, _HIGH),
    "iq4_xs": TexelOrder(8, _SCALED, _QUANTS),
}


def layout(dtype: DType, cols: int) -> WeightLayout | None:
    """Return the layout of rows of `cols` values; None if the format or the length has none."""
    values = row_values(dtype)
    if not values or cols % values:
        return None
    modules = {
        "reader": f"{LIB}/block_texture_reader",
        "source": f"{LIB}/block_texture_source",
        "weights": f"{FOLDER}/block_texture/{dtype}",
    }
    return WeightLayout(
        NAME,
        "texture",
        "texture",
        cols,
        TILE_ROWS,
        tile_nbytes(dtype, dtype.nbytes(cols)),
        partial(in_order, dtype),
        slice_rows=TILE_ROWS,
        modules=modules,
        constants=constants(dtype),
        for_bytes=True,
    )


def constants(dtype: DType) -> dict[str, int]:
    """Return the constants of a format that the family's `lib/block_texture.wgsl` needs."""
    order = ORDERS[dtype.name]
    planes_there = (*order.head, *order.group)
    sizes = {f"{name.upper()}_NBYTES": order.nbytes(dtype, name) for name in planes_there}
    lanes = {"TEXTURE_LANES": LANES, "LANE_ROWS": LANE_ROWS, "TEXEL_ROW_BITS": TEXEL_ROW_BITS}
    return {**lanes, "HEAD_GROUPS": order.groups, **sizes}


def row_values(dtype: DType) -> int:
    """Return how many values share one set of scales; 0 if the format has no such layout."""
    return ORDERS[dtype.name].groups * _GROUP if dtype.name in ORDERS else 0


def tile_nbytes(dtype: DType, row_nbytes: int) -> int:
    """Return the bytes of `TILE_ROWS` rows."""
    order = ORDERS[dtype.name]
    head, group = order.loads(dtype)
    heads = row_nbytes // dtype.block_nbytes * dtype.block // (order.groups * _GROUP)
    return heads * (head + order.groups * group) * LANES * TEXEL_NBYTES


def in_order(dtype: DType, rows: Bytes) -> Bytes:
    """Reorder rows as lanes load them.

    Parameters
    ----------
    rows : (n, row_nbytes), uint8
        Filled up with zeros to whole tiles.

    Returns
    -------
    (tiles, tile_nbytes), uint8
    """
    order, odd = ORDERS[dtype.name], -len(rows) % TILE_ROWS
    rows = np.pad(rows, ((0, odd), (0, 0))) if odd else rows
    split = planes(dtype, rows.reshape(-1, dtype.block_nbytes))
    tiles, groups = len(rows) // TILE_ROWS, order.groups
    head, group = order.loads(dtype)
    out = np.zeros((tiles, tile_nbytes(dtype, rows.shape[1])), np.uint8)
    loads = out.reshape(tiles, -1, head + groups * group, LANES, TEXEL_NBYTES)
    heads = loads.shape[1]
    after = loads[:, :, head:].reshape(tiles, heads, groups, group, LANES, TEXEL_NBYTES)
    for names, into in ((order.head, loads[:, :, None, :head]), (order.group, after)):
        at = 0
        for name in names:
            width = order.texels(dtype, name)
            _put(split[name], order.nbytes(dtype, name), into[:, :, :, at : at + width])
            at += width
    return out


def _put(plane: Bytes, nbytes: int, into: Bytes) -> None:
    """Write a plane into packed rows: (tiles, heads, groups, texels, lanes, bytes)."""
    tiles, heads, groups, texels = into.shape[:4]
    rows = plane.reshape(tiles, LANES, LANE_ROWS, heads, groups, nbytes)
    lanes = np.ascontiguousarray(_words(rows).transpose(0, 3, 4, 1, 2, 5)).view(np.uint8)
    lanes = lanes.reshape(tiles, heads, groups, LANES, LANE_ROWS * nbytes)
    if odd := texels * TEXEL_NBYTES - lanes.shape[-1]:
        lanes = np.pad(lanes, (*[(0, 0)] * 4, (0, odd)))
    shape = (tiles, heads, groups, LANES, texels, TEXEL_NBYTES)
    _words(into)[...] = _words(lanes.reshape(shape)).swapaxes(3, 4)


def _words(values: Bytes) -> NDArray[Any]:
    """View the last axis in the widest words that divide it: NumPy moves them faster."""
    width = math.gcd(values.shape[-1], 8)
    whole = values if values.strides[-1] == 1 else np.ascontiguousarray(values)
    return whole.view(f"u{width}")
