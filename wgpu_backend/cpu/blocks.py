"""Block formats on the host: gguf-py's decoders, those it lacks, encoders, and the codebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.quantise import rounded_blocks

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def decoded(dtype: DType, blocks: Bytes) -> Floats:
    """Values of blocks.

    Parameters
    ----------
    dtype : DType
        A block format.
    blocks : (n, block_nbytes), uint8

    Returns
    -------
    (n, block), f32
    """
    ours = _DECODERS.get(dtype.name)
    if ours is not None:
        return ours(blocks)
    return quants.dequantize(blocks, GGMLQuantizationType(_number(dtype)))


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


def _number(dtype: DType) -> int:
    assert dtype.ggml is not None
    return dtype.ggml


def _f16_values(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _q1_0(blocks: Bytes) -> Floats:
    """An f16 scale and 128 bits, the first lowest: 1 is the scale, 0 its negative."""
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return _f16_values(blocks[:, :2]) * (2 * bits.astype(np.float32) - 1)


def _q8_1(blocks: Bytes) -> Floats:
    """An f16 scale, an f16 scale times the sum, which decoding does not need, and 32 i8."""
    return _f16_values(blocks[:, :2]) * blocks[:, 4:].view(np.int8).astype(np.float32)


def _q8_k(blocks: Bytes) -> Floats:
    """An f32 scale, 256 i8, and sums of 16 of them each, which decoding does not need."""
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return scale * blocks[:, 4:260].view(np.int8).astype(np.float32)


_DECODERS: Mapping[str, Callable[[Bytes], Floats]] = {"q1_0": _q1_0, "q8_1": _q8_1, "q8_k": _q8_k}
_CODEBOOKS = {
    "iq1_s": "IQ1_S",
    "iq1_m": "IQ1_S",
    "iq2_xxs": "IQ2_XXS",
    "iq2_xs": "IQ2_XS",
    "iq2_s": "IQ2_S",
    "iq3_xxs": "IQ3_XXS",
    "iq3_s": "IQ3_S",
}
