"""Layout `float_texture`: rows of floats in tiles of 64, interleaved by texels.

A rasteriser loads a texel of eight lanes in a quarter of the instructions that as many words of a
buffer take, and the prefetcher follows one run through memory. So the first texels of 64 rows lie
side by side, then their second ones: what consecutive work groups read is one run.
``shaders/kernels/rasteriser/float_texture/`` reads what this file makes.
"""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.graph.capabilities import TEXEL_NBYTES, TEXEL_ROW_BITS
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.kernels.rasteriser.layouts import rebased_f16
from wgpu_backend.ops.layouts.layout import WeightLayout
from wgpu_backend.ops.layouts.super_blocks import Bytes

NAME = "float_texture"
TILE_ROWS = 64
GROUP = 32  # values of a row that products take at once


def layout(dtype: DType, cols: int) -> WeightLayout | None:
    """Return the layout of rows of `cols` floats; None for blocks, and for broken groups."""
    if dtype not in (F32, F16, BF16) or cols % GROUP:
        return None
    small = dtype == F16
    constants = {"TILE_ROWS": TILE_ROWS, "TEXEL_ROW_BITS": TEXEL_ROW_BITS}
    return WeightLayout(
        NAME,
        "texture",
        "",
        cols,
        TILE_ROWS,
        TILE_ROWS * dtype.nbytes(cols),
        _interleaved_f16 if small else interleave,
        accepts=rebased_f16.fit if small else None,
        modules={"source": f"{FOLDER}/float_texture/{dtype}", "weights": f"{LIB}/texels"},
        constants={**constants, "RAISED": rebased_f16.RAISED} if small else constants,
    )


def _interleaved_f16(rows: Bytes) -> Bytes:
    return interleave(rebased_f16.rebase(rows))


def interleave(rows: Bytes) -> Bytes:
    """Interleave rows as a texture holds them, padded with zeros to whole tiles.

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
