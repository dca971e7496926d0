"""Rows of weights in tiles of 64, texel by texel: how images hold them.

A rasteriser loads a texel of eight lanes in a quarter of the instructions that as many words of a
buffer take, and a core fetches ahead what lies in one piece. So the first texels of 64 rows lie
side by side, then their second ones: what work groups that follow one another read is one run
through memory. ``shaders/tiled/`` reads what this file makes.
"""

from __future__ import annotations

import numpy as np

from wgpu_backend.device.buffers import TEXEL_NBYTES
from wgpu_backend.ml.super_blocks import Bytes

TILE_ROWS = 64


def tiled(rows: Bytes) -> Bytes:
    """Rows as an image holds them, filled up with zeros to whole tiles.

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
