"""Layout `float_texture`: rows of floats in tiles of 64, interleaved by texels.

A rasteriser loads a texel of eight lanes in a quarter of the instructions that as many words of a
buffer take, and the prefetcher follows one run through memory. So the first texels of 64 rows lie
side by side, then their second ones: what consecutive work groups read is one run.
``shaders/kernels/rasteriser/float_texture/`` reads what this file makes.

F16 weights are stored so that a shift and a mask turn their bits into f32. A rasteriser converts an
f16 to f32 in ten instructions, most of them on narrow vectors. Sign, exponent and fraction of an
f16, moved to where an f32 has them, are an f32 that is too small by a power of two, which products
correct at their ends (`shaders/lib/numeric/raised.wgsl`). Subnormals would become subnormal f32,
which devices may flush to zero. So exponents are rebased here: counted from the smallest f16,
2^-24, as 1 to 31 they reach below 128, and every such value is a normal f32 or zero. Weights with
values of 128 or more stay in buffers.

Half of the power of two goes to what weights are multiplied with, half to the sum, which leaves
room at both ends of f32: products below 2^-75 count as zero, factors from 2^76 on as infinite.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.graph.capabilities import TEXEL_NBYTES, TEXEL_ROW_BITS
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.ops.layouts.layout import WeightLayout
from wgpu_backend.ops.layouts.super_blocks import Bytes

NAME = "float_texture"
TILE_ROWS = 64
# Values of a row that products take at once.
GROUP = 32


def layout(dtype: DType, cols: int) -> WeightLayout | None:
    """Return the layout of rows of `cols` floats; None for blocks, or if groups are not whole."""
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
        accepts=fit if small else None,
        modules={"source": f"{FOLDER}/float_texture/{dtype}", "weights": f"{LIB}/texels"},
        constants={**constants, "RAISED": RAISED} if small else constants,
    )


def _interleaved_f16(rows: Bytes) -> Bytes:
    return interleave(rebase(rows))


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
    # NumPy moves words faster than odd types of 16 bytes.
    pairs = TEXEL_NBYTES // 8
    tiles = np.zeros((-(-count // TILE_ROWS), texels, TILE_ROWS, pairs), np.uint64)
    words = rows.view(np.uint64).reshape(count, texels, pairs)
    full = words[: whole * TILE_ROWS].reshape(whole, TILE_ROWS, texels, pairs)
    tiles[:whole] = full.swapaxes(1, 2)
    if count % TILE_ROWS:
        tiles[whole, :, : count % TILE_ROWS] = words[whole * TILE_ROWS :].swapaxes(0, 1)
    return tiles.reshape(len(tiles), -1).view(np.uint8)


# Half of the exponent by which such values are too small, see shaders/lib/numeric/raised.wgsl.
RAISED = 51
# Exponent of the smallest f16, which reads as 2^-126.
LEAST = 2 * RAISED - 126
# Bits of positive f16 grow with their values, so bits can be compared.
BELOW = np.float16(128).view(np.uint16)
_MAGNITUDE, _EXPONENT = np.uint16(0x7FFF), np.uint16(0x7C00)
# What to add to the bits of a normal value to rebase its exponent.
_NORMAL = np.uint16((-14 - LEAST) << 10)
# Values looked at in one step: the masked copy stays small.
_AT_ONCE = 1 << 20


def fit(rows: Bytes) -> bool:
    """Return whether all values of (n, row bytes) are below 128, and none NaN."""
    values = rows.reshape(-1).view(np.uint16)
    starts = range(0, len(values), _AT_ONCE)
    return all((values[i : i + _AT_ONCE] & _MAGNITUDE).max() < BELOW for i in starts)


def rebase(rows: Bytes) -> Bytes:
    """Change the exponents of f16 values to count from 2^-24; `fit` must have accepted the values.

    Parameters
    ----------
    rows : (n, row_nbytes)
        uint8.

    Returns
    -------
    (n, row_nbytes), uint8
    """
    values = rows.view(np.uint16).reshape(-1)
    codes = values + _NORMAL
    small = np.flatnonzero((values & _EXPONENT) == 0)
    codes[small] = _rebase_small(values[small])
    return codes.view(np.uint8).reshape(rows.shape)


def _rebase_small(values: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Rebase zeros and subnormals: shift fractions until their first bit is the implicit one."""
    # The conversion to f32 finds the first bit of each fraction. The values are counted in 2^-24.
    fraction = (values & _MAGNITUDE).astype(np.float32)
    bits = fraction.view(np.uint32)
    # 1 for 2^-24.
    exponent = (bits >> 23) - 126
    code = (exponent << 10) | ((bits >> 13) & 0x3FF)
    return np.where(fraction > 0, code, 0).astype(np.uint16) | (values & ~_MAGNITUDE)
