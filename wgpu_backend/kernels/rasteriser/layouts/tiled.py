"""Layout `tiled`: rows of floats in tiles of 64, texel by texel.

A rasteriser loads a texel of eight lanes in a quarter of the instructions that as many words of a
buffer take, and a core fetches ahead what lies in one piece. So the first texels of 64 rows lie
side by side, then their second ones: what work groups that follow one another read is one run
through memory. ``shaders/kernels/rasteriser/tiled/`` reads what this file makes.
"""

from __future__ import annotations

import numpy as np

from wgpu_backend.device.buffers import LINE_BITS, TEXEL_NBYTES
from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.kernels.rasteriser.layouts import halves
from wgpu_backend.layouts.layout import WeightLayout
from wgpu_backend.layouts.super_blocks import Bytes

NAME = "tiled"
TILE_ROWS = 64
GROUP = 32  # values of a row that products take at once


def layout(dtype: DType, cols: int) -> WeightLayout | None:
    """Layout of rows of so many floats; None for blocks, and rows that are no whole groups."""
    if dtype not in (F32, F16, BF16) or cols % GROUP:
        return None
    small = dtype == F16
    constants = {"TILE_ROWS": TILE_ROWS, "LINE_BITS": LINE_BITS}
    return WeightLayout(
        NAME,
        "texture",
        "",
        cols,
        TILE_ROWS,
        TILE_ROWS * dtype.nbytes(cols),
        _tiled_halves if small else tiled,
        accepts=halves.fit if small else None,
        modules={"source": f"{FOLDER}/tiled/{dtype}", "weights": f"{LIB}/texels"},
        constants={**constants, "RAISED": halves.RAISED} if small else constants,
    )


def _tiled_halves(rows: Bytes) -> Bytes:
    return tiled(halves.recounted(rows))


def tiled(rows: Bytes) -> Bytes:
    """Rows as a texture holds them, filled up with zeros to whole tiles.

    Parameters
    ----------
    rows : (n, row_nbytes), uint8
        `row_nbytes` is a multiple of `TEXEL_NBYTES`.

    Returns
    -------
    (tiles, tile_nbytes), uint8
    """
    count, row_nbytes = rows.shape
    texels = row_nbytes // TEXEL_NBYTES
    whole = count // TILE_ROWS
    pairs = TEXEL_NBYTES // 8  # NumPy moves words faster than odd types of 16 bytes
    tiles = np.zeros((-(-count // TILE_ROWS), texels, TILE_ROWS, pairs), np.uint64)
    words = rows.view(np.uint64).reshape(count, texels, pairs)
    full = words[: whole * TILE_ROWS].reshape(whole, TILE_ROWS, texels, pairs)
    tiles[:whole] = full.swapaxes(1, 2)
    if count % TILE_ROWS:
        tiles[whole, :, : count % TILE_ROWS] = words[whole * TILE_ROWS :].swapaxes(0, 1)
    return tiles.reshape(len(tiles), -1).view(np.uint8)
