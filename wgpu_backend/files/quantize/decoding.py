"""Decoding of blocks, by gguf-py's decoders and those it lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from gguf import GGMLQuantizationType, quants

from wgpu_backend.dtypes import DType
from wgpu_backend.files.quantize.blocks import Bytes
from wgpu_backend.files.quantize.search import Floats


def decode_blocks(dtype: DType, blocks: Bytes) -> Floats:
    """Decode blocks to values.

    Parameters
    ----------
    dtype : DType
        A block format.
    blocks : (n, block_nbytes), uint8
        Bytes of the blocks.

    Returns
    -------
    (n, block), f32
    """
    ours = _DECODERS.get(dtype.name)
    if ours is not None:
        return ours(blocks)
    return quants.dequantize(blocks, GGMLQuantizationType(_number(dtype)))


def _number(dtype: DType) -> int:
    assert dtype.ggml is not None
    return dtype.ggml


def _f16_values(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _q1_0(blocks: Bytes) -> Floats:
    """Decode an f16 scale and 128 bits, the first lowest: 1 is the scale, 0 its negative."""
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return _f16_values(blocks[:, :2]) * (2 * bits.astype(np.float32) - 1)


def _q2_0(blocks: Bytes) -> Floats:
    """Decode an f16 scale and 64 2-bit codes, the first lowest: -1, 0, 1 and 2 times the scale."""
    codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)
    return _f16_values(blocks[:, :2]) * (codes.reshape(len(blocks), 64).astype(np.float32) - 1)


def _q8_1(blocks: Bytes) -> Floats:
    """Decode an f16 scale, an unused f16 scale times the sum, and 32 i8."""
    return _f16_values(blocks[:, :2]) * blocks[:, 4:].view(np.int8).astype(np.float32)


def _q8_k(blocks: Bytes) -> Floats:
    """Decode an f32 scale, 256 i8, and unused sums of 16 of them each."""
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return scale * blocks[:, 4:260].view(np.int8).astype(np.float32)


_DECODERS: Mapping[str, Callable[[Bytes], Floats]] = {
    "q1_0": _q1_0,
    "q2_0": _q2_0,
    "q8_1": _q8_1,
    "q8_k": _q8_k,
}
