"""Autoencoding of large images in tiles, blended where they overlap.

A decoder's memory grows with the pixels of a tile, not of the image: its largest array has `widest`
channels at full size. `tile_side` chooses tiles so that this array fits into a binding of the
device and into `BUDGET`. On a device about 3.5 such arrays exist at once, which bounds the memory
for images of any size. NumPy keeps all arrays of a pass, about 35, and has a smaller budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array.session import Session
from wgpu_backend.errors import OptionError
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

Floats = NDArray[np.float32]
# Bytes of the largest array of a tile.
BUDGET = 1 << 30
BUDGET_OF_NUMPY = 1 << 26
# Adjacent tiles share one part in so many of a side.
OVERLAP = 4
# Latents that sides of tiles are multiples of.
_STEP = 8


def tile_side(session: Session, factor: int, widest: int) -> int:
    """Return the latents along the side of the largest tile that the device can take.

    Parameters
    ----------
    factor : int
        Pixels along the side of a latent.
    widest : int
        Channels of the largest array at full size.

    Raises
    ------
    OptionError
        Not even the smallest tile fits.
    """
    limit = BUDGET_OF_NUMPY
    if isinstance(session.executor, WgpuExecutor):
        limit = min(BUDGET, session.executor.capabilities.max_binding_nbytes)
    # 4 bytes of an f32 value.
    side = int((limit / (4 * widest)) ** 0.5 / factor) // _STEP * _STEP
    if side < _STEP:
        raise OptionError(
            f"{limit} bytes are the most for one array; a tile of {_STEP} latents a side needs "
            f"{4 * widest * (_STEP * factor) ** 2}"
        )
    return side


def run_tiled(
    x: Floats,
    make: Callable[[wx.Array], wx.Array],
    tile: int,
    scale: Callable[[int], int],
) -> Floats:
    """Apply `make` to `x` tile by tile.

    Parameters
    ----------
    x : (n, h, w, channels)
    make : callable
        Maps a tile, (n, h, w, channels), to another size and other channels.
    tile : int
        Side of a tile of `x`; a smaller `x` is one tile, and exact.
    scale : callable
        Returns the side of a result from the side of `x`; also for differences.

    Returns
    -------
    (n, scale(h), scale(w), channels of the result)
    """
    height, width = x.shape[1:3]
    if height <= tile and width <= tile:
        return make(wx.array(x)).numpy()
    rows, columns = starts(height, tile), starts(width, tile)
    total: Floats | None = None
    weight = np.zeros((scale(height), scale(width), 1), np.float32)
    for top, left in product(rows, columns):
        part = x[:, top : top + tile, left : left + tile]
        made = make(wx.array(np.ascontiguousarray(part))).numpy()
        if total is None:
            total = np.zeros((x.shape[0], *weight.shape[:2], made.shape[-1]), np.float32)
        y, share = _place(made, (top, left), x.shape[1:3], tile, scale)
        total[:, y[0], y[1]] += made * share
        weight[y] += share
    assert total is not None
    return total / weight


def starts(extent: int, tile: int) -> list[int]:
    """Return where tiles begin along a side; they overlap, and the last ends with the side."""
    if extent <= tile:
        return [0]
    step = tile - tile // OVERLAP
    # A last tile moved back, rather than a narrow one, keeps one shape for all tiles.
    return [*range(0, extent - tile, step), extent - tile]


def _place(
    made: Floats,
    begin: Sequence[int],
    extents: Sequence[int],
    tile: int,
    scale: Callable[[int], int],
) -> tuple[tuple[slice, slice], Floats]:
    """Return the place of a tile's result, and its weights, lower towards shared borders."""
    slices: list[slice] = []
    shares: list[Floats] = []
    for axis in range(2):
        side = made.shape[1 + axis]
        first = scale(begin[axis])
        slices.append(slice(first, first + side))
        shared = scale(tile // OVERLAP)
        # From the middle of the first pixel, so that no weight is 0 and sums can be divided.
        ramp = (np.arange(side, dtype=np.float32) + 0.5) / shared
        front = ramp if begin[axis] else np.ones_like(ramp)
        back = ramp[::-1] if begin[axis] + tile < extents[axis] else np.ones_like(ramp)
        shares.append(np.minimum(np.minimum(front, back), 1))
    return (slices[0], slices[1]), shares[0][:, None, None] * shares[1][None, :, None]
