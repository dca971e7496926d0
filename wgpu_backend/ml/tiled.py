"""Rows of weights in tiles of 64, texel by texel: how images hold them.

A rasteriser loads a texel of eight lanes in a quarter of the instructions that as many words of a
buffer take, and a core fetches ahead what lies in one piece. So the first texels of 64 rows lie
side by side, then their second ones: what work groups that follow one another read is one run
through memory. ``shaders/tiled/`` reads what this file makes.
"""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.device.buffers import LINE_NBYTES, LINE_TEXELS, MAX_LINES, TEXEL_NBYTES
from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import BF16, F16, F32
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.super_blocks import Bytes

TILE_ROWS = 64
# So many rows are whole lines, as those of 32 values of any type are whole texels.
STEP_ROWS = TILE_ROWS * LINE_TEXELS // (TILE_ROWS * 4)
_GROUP = 32  # values that products take at once


def has_tiles(spec: Spec, capabilities: Capabilities) -> bool:
    """Whether a weight goes into images: floats in rows of whole groups, on a rasteriser."""
    return (
        capabilities.telling_lanes
        and spec.dtype in (F32, F16, BF16)
        and len(spec.shape) == 2
        and spec.size > 0
        and spec.shape[-1] % _GROUP == 0
    )


def most_rows(row_nbytes: int) -> int:
    """Rows that one image holds."""
    return MAX_LINES * LINE_NBYTES // row_nbytes // STEP_ROWS * STEP_ROWS


def lines_of(rows: int, row_nbytes: int) -> int:
    """Lines of the image for some rows."""
    tiles = -(-rows // TILE_ROWS)
    return -(-tiles * TILE_ROWS * row_nbytes // LINE_NBYTES)


def tiled(rows: Bytes) -> Bytes:
    """Rows as an image holds them, filled up with zeros to whole lines.

    Parameters
    ----------
    rows : (n, row_nbytes), uint8
        `row_nbytes` is a multiple of `TEXEL_NBYTES`.

    Returns
    -------
    (lines, LINE_NBYTES), uint8
    """
    count, row_nbytes = rows.shape
    lines = np.zeros((lines_of(count, row_nbytes), LINE_NBYTES), np.uint8)
    texels = row_nbytes // TEXEL_NBYTES
    whole = count // TILE_ROWS
    pairs = TEXEL_NBYTES // 8  # NumPy moves words faster than odd types of 16 bytes
    shape = (-(-count // TILE_ROWS), texels, TILE_ROWS, pairs)
    tiles = lines.reshape(-1).view(np.uint64)[: math.prod(shape)].reshape(shape)
    words = rows.view(np.uint64).reshape(count, texels, pairs)
    full = words[: whole * TILE_ROWS].reshape(whole, TILE_ROWS, texels, pairs)
    tiles[:whole] = full.swapaxes(1, 2)
    if count % TILE_ROWS:
        tiles[whole, :, : count % TILE_ROWS] = words[whole * TILE_ROWS :].swapaxes(0, 1)
    return lines
