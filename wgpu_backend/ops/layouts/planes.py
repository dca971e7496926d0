"""The portable weight layout: blocks split into aligned planes, without growing by a bit.

GGUF blocks have odd sizes (18, 34, 210 bytes), so a kernel that reads them stitches words together.
Here the quants of 32 weights become one or two 16-byte vectors and the scales a plane of their own.
``shaders/formats/dequant/NAME.wgsl`` reads the planes that this file makes; both use the same
names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from gguf import quants
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ModelError
from wgpu_backend.graph.memory import SLACK
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.layouts import super_blocks
from wgpu_backend.ops.layouts.super_blocks import LOW, NIBBLE, Bytes, Planes, iq1_m_scales, nibbles

# A binding's offset in its buffer: WebGPU's default alignment.
ALIGNMENT = 256
# Classes of `gguf.quants` that have codebooks.
_CODEBOOKS = {
    "iq1_s": "IQ1_S",
    "iq1_m": "IQ1_S",
    "iq2_xxs": "IQ2_XXS",
    "iq2_xs": "IQ2_XS",
    "iq2_s": "IQ2_S",
    "iq3_xxs": "IQ3_XXS",
    "iq3_s": "IQ3_S",
}


def planes(dtype: DType, blocks: Bytes) -> Planes:
    """Split blocks into planes.

    Parameters
    ----------
    blocks : (n, block_nbytes)
        uint8.

    Returns
    -------
    dict
        Plane name to (n, bytes per block), uint8; the name is empty for types that are left as
        they are.
    """
    split = _SPLITS.get(dtype.name)
    return {"": blocks} if split is None else split(blocks)


def join_planes(parts: Planes) -> Bytes:
    """Rebuild blocks from their planes, for the types that a device can write.

    Parameters
    ----------
    parts : dict
        What `planes` makes of q8_0, q4_0, q4_1, q5_0 or q5_1.

    Returns
    -------
    (n, block_nbytes), uint8
    """
    return np.concatenate(
        [parts[name] for name in ("scales", "high", "quants") if name in parts], 1
    )


def plane_nbytes(dtype: DType) -> dict[str, int]:
    """Return the bytes per block in each plane."""
    # One block is split to measure the planes, so no table can contradict the split.
    empty = np.zeros((1, dtype.block_nbytes), np.uint8)
    return {name: plane.shape[1] for name, plane in planes(dtype, empty).items()}


@cache
def codebook(dtype: DType) -> Bytes | None:
    """Return the vectors that the quants of a format index; None where quants are numbers.

    All tensors of a format share them, as one more plane.

    Returns
    -------
    (entries, 4 or 8), uint8
        Magnitudes; for iq1_s and iq1_m the numbers -1, 0 and 1 as i8.
    """
    name = _CODEBOOKS.get(dtype.name)
    if name is None:
        return None
    holder = getattr(quants, name)
    # gguf-py builds a grid when it is first used.
    holder.init_grid()
    return holder.grid.reshape(holder.grid_shape).astype(np.int8).view(np.uint8)


def binding_count(dtype: DType) -> int:
    """Count the storage bindings that a kernel needs for a weight: its planes and the codebook."""
    return len(plane_nbytes(dtype)) + (dtype.name in _CODEBOOKS)


def align(nbytes: int) -> int:
    """Round `nbytes` up to the alignment of a binding's offset."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def plane_ranges(spec: Spec) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each plane of a tensor in one buffer, in bytes."""
    blocks = spec.nbytes // spec.dtype.block_nbytes
    ranges: dict[str, tuple[int, int]] = {}
    end = 0
    for name, nbytes in plane_nbytes(spec.dtype).items():
        # Kernels read whole vectors at the end of a plane.
        size = align(blocks * nbytes + SLACK)
        ranges[name] = (end, size)
        end += size
    return ranges


def stored_nbytes(spec: Spec) -> int:
    """Return the size of a tensor in a buffer of its own, in bytes, without slack at the end."""
    if not spec.dtype.quantised:
        return spec.nbytes
    return sum(size for _, size in plane_ranges(spec).values()) - SLACK


def nonfinite_blocks(dtype: DType, blocks: Bytes) -> int:
    """Count blocks with a NaN or infinite scale or minimum; of plain floats, non-finite values.

    Parameters
    ----------
    blocks : (n, block_nbytes), uint8
        For plain types a block is one value.
    """
    field = _FLOATS.get(dtype.name)
    if field is None or not len(blocks):
        return 0
    if dtype.name == "iq1_m":
        blocks = iq1_m_scales(blocks)
    words = np.ascontiguousarray(blocks[:, field.where].view(field.word))
    # Nearly all weights are finite, and one maximum proves it without a mask of all values.
    if not _any_reaches(words.reshape(-1), field.infinity):
        return 0
    magnitudes = words & words.dtype.type(field.infinity)
    return int(np.count_nonzero((magnitudes == field.infinity).any(axis=-1)))


def require_finite(label: str, bad: int, blocks: int) -> None:
    """Raise ModelError if a weight has non-finite blocks, as `nonfinite_blocks` counts them.

    Raises
    ------
    ModelError
        There are any.
    """
    if bad:
        raise ModelError(
            f"{label}: {bad} of {blocks} blocks have a NaN or infinite scale or value, "
            f"needs finite ones"
        )


def _any_reaches(words: NDArray[Any], infinity: int) -> bool:
    """Return whether any float of these bits is infinite or NaN, reading piece by piece."""
    sign = words.dtype.itemsize * 8 - 1
    mask = words.dtype.type((1 << sign) - 1)
    return any(
        (words[start : start + _SCAN] & mask).max() >= infinity
        for start in range(0, len(words), _SCAN)
    )


def _q4_0(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 2:], "scales": blocks[:, :2]}


def _q4_1(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 4:], "scales": blocks[:, :4]}


def _q5_0(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 6:], "high": blocks[:, 2:6], "scales": blocks[:, :2]}


def _q5_1(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 8:], "high": blocks[:, 4:8], "scales": blocks[:, :4]}


def _q8_1(blocks: Bytes) -> Planes:
    # The sum of a block is not read by any kernel.
    return {"quants": blocks[:, 4:], "scales": blocks[:, :2]}


def _mxfp4(blocks: Bytes) -> Planes:
    return {"quants": blocks[:, 1:], "scales": blocks[:, :1]}


def _nvfp4(blocks: Bytes) -> Planes:
    # Eight bytes hold 16 values, low nibbles before high ones.
    quants = blocks[:, 4:].reshape(len(blocks), 2, 2, 1, 8)
    values = np.concatenate([quants & LOW, quants >> NIBBLE], axis=3)
    return {"quants": nibbles(values.reshape(len(blocks), 2, 32)), "scales": blocks[:, :4]}


_SPLITS: Mapping[str, Callable[[Bytes], Planes]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    # This format has a scale and then the quants, too.
    "q8_0": _q4_0,
    "q8_1": _q8_1,
    "q1_0": _q4_0,
    "q2_0": _q4_0,
    "iq4_nl": _q4_0,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    **super_blocks.SPLITS,
}


@dataclass(frozen=True, slots=True)
class _Field:
    """The floats of a block: their bytes, the word type, and the bits of infinity."""

    where: slice
    word: str
    infinity: int


# Words whose masked copy stays in a core's cache.
_SCAN = 1 << 16
_F16, _TWO_F16 = _Field(slice(0, 2), "<u2", 0x7C00), _Field(slice(0, 4), "<u2", 0x7C00)
_FLOATS = {
    "f32": _Field(slice(0, 4), "<u4", 0x7F800000),
    "f16": _F16,
    "bf16": _Field(slice(0, 2), "<u2", 0x7F80),
    "q4_0": _F16,
    "q4_1": _TWO_F16,
    "q5_0": _F16,
    "q5_1": _TWO_F16,
    "q8_0": _F16,
    "q8_1": _F16,
    "q1_0": _F16,
    "q2_0": _F16,
    "q2_k": _Field(slice(80, 84), "<u2", 0x7C00),
    "q3_k": _Field(slice(108, 110), "<u2", 0x7C00),
    "q4_k": _TWO_F16,
    "q5_k": _TWO_F16,
    "q6_k": _Field(slice(208, 210), "<u2", 0x7C00),
    "q8_k": _Field(slice(0, 4), "<u4", 0x7F800000),
    "iq1_s": _F16,
    "iq1_m": _F16,
    "iq2_xxs": _F16,
    "iq2_xs": _F16,
    "iq2_s": _F16,
    "iq3_xxs": _F16,
    "iq3_s": _F16,
    "iq4_nl": _F16,
    "iq4_xs": _F16,
    "tq1_0": _Field(slice(52, 54), "<u2", 0x7C00),
    "tq2_0": _Field(slice(64, 66), "<u2", 0x7C00),
}
