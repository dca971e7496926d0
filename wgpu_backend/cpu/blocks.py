"""What twins ask of block formats: values as blocks hold them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.files.quantize import decoded, rounded_blocks

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

__all__ = ["decoded", "encoded", "rounded"]


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
