"""What twins ask of block formats: values as blocks hold them, and the codebooks."""

from __future__ import annotations

from functools import cache

import numpy as np
from gguf import quants
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.quantise import decoded, rounded_blocks

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

__all__ = ["codebook", "decoded", "encoded", "rounded"]


def encoded(dtype: DType, values: Floats) -> Bytes:
    """Blocks that hold values as nearly as the format's plain rounding does.

    Parameters
    ----------
    dtype : DType
        q4_0, q4_1, q5_0, q5_1 or q8_0.
    values : (..., cols), f32
        `cols` a multiple of the block.

    Returns
    -------
    (n, block_nbytes), uint8
    """
    rows = np.ascontiguousarray(values, np.float32).reshape(-1, dtype.block)
    return rounded_blocks(rows, dtype)


def rounded(dtype: DType, values: Floats) -> Floats:
    """Values after a way through blocks and back; the same shape."""
    if not values.size:
        return values
    return decoded(dtype, encoded(dtype, values)).reshape(values.shape)


@cache
def codebook(dtype: DType) -> Bytes | None:
    """Vectors that the quants of a format point to, or None where they are numbers.

    Returns
    -------
    (entries, 4 or 8), uint8
        Magnitudes; for iq1_s and iq1_m the numbers -1, 0 and 1 as i8.
    """
    name = _CODEBOOKS.get(dtype.name)
    if name is None:
        return None
    holder = getattr(quants, name)
    holder.init_grid()
    return holder.grid.reshape(holder.grid_shape).astype(np.int8).view(np.uint8)


_CODEBOOKS = {
    "iq1_s": "IQ1_S",
    "iq1_m": "IQ1_S",
    "iq2_xxs": "IQ2_XXS",
    "iq2_xs": "IQ2_XS",
    "iq2_s": "IQ2_S",
    "iq3_xxs": "IQ3_XXS",
    "iq3_s": "IQ3_S",
}
