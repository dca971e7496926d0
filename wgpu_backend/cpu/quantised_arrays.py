"""NumPy twins of `wgpu_backend.ops.mlx_quant`."""

from __future__ import annotations

from typing import cast

import numpy as np

from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.dtypes import F32, DType
from wgpu_backend.ops.mlx_quant.modes import coding_of

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_BYTES = np.arange(256)
_SIZES = np.where(
    _BYTES & 0x78,
    (1 + (_BYTES & 7) / 8) * 2.0 ** (((_BYTES >> 3) & 15) - 7),
    (_BYTES & 7) / 512,
)
E4M3 = np.where(_BYTES & 128, -_SIZES, _SIZES).astype(np.float32)


def codes_of(packed: Array, bits: int) -> Array:
    """Codes of a row, one after the other, from words that hold them from the low bits on."""
    octets = np.ascontiguousarray(packed, np.dtype("<u4")).view(np.uint8)
    ones = np.unpackbits(octets, axis=-1, bitorder="little")
    apart = ones.reshape(*packed.shape[:-1], packed.shape[-1] * 32 // bits, bits)
    return apart @ (1 << np.arange(bits))


def packed_of(codes: Array, bits: int) -> Array:
    """Words of codes, from the low bits on."""
    ones = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    octets = np.packbits(
        ones.astype(np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] * bits),
        axis=-1,
        bitorder="little",
    )
    return np.ascontiguousarray(octets).view(np.dtype("<u4"))


def grouped(w: Array, size: int) -> Array:
    """Groups of a row, on an axis of their own."""
    return w.reshape(*w.shape[:-1], w.shape[-1] // size, size).astype(np.float32)


@twin
def affine_scales(w: Array, *, group_size: int, bits: int) -> Array:
    """Scale and bias of groups."""
    groups = grouped(w, group_size)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    below = np.abs(low) > np.abs(high)
    size = np.maximum((high - low) / np.float32(2**bits - 1), np.float32(1e-7))
    edge = cast("Array", np.where(below, low, high))
    scale = cast("Array", np.where(below, size, -size))
    code = np.rint(edge / scale)
    met = code != 0
    scale = np.where(met, edge / np.where(met, code, 1), scale)
    return np.stack([scale, np.where(met, edge, 0)], axis=-1).astype(np.float32)


@twin
def affine_packed(w: Array, scales: Array, *, group_size: int, bits: int) -> Array:
    """Nearest codes, packed."""
    groups = grouped(w, group_size)
    nearest = np.rint((groups - scales[..., 1:]) / scales[..., :1])
    return packed_of(np.clip(nearest, 0, 2**bits - 1).reshape(w.shape), bits)


@twin
def float_scales(w: Array, *, mode: str) -> Array:
    """Largest sizes as small floats."""
    coding = coding_of("float_scales", mode, None, None)
    groups = np.abs(grouped(w, coding.group_size))
    scale = groups.max(axis=-1) / np.float32(6 if coding.bits == 4 else 448)
    if mode == "nvfp4":
        return to_e4m3(scale)
    half, power = np.frexp(scale)
    return np.where(scale == 0, 127, power + 127 - (half == 0.5)).astype(np.uint8)


def to_e4m3(values: Array) -> Array:
    """Bits of the nearest E4M3, ties to even, at most 448."""
    size = np.abs(values)
    exponent = np.maximum(np.floor(np.log2(np.where(size == 0, 1, size))), -6)
    step = 2.0 ** (exponent - 3)
    rounded = np.minimum(np.rint(size / step) * step, 448).astype(np.float32)
    codes = np.searchsorted(E4M3[:127], rounded)
    return (codes | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


@twin
def float_packed(w: Array, scales: Array, *, mode: str) -> Array:
    """Values over their scales as small floats, packed."""
    coding = coding_of("float_packed", mode, None, None)
    groups = grouped(w, coding.group_size)
    by = _scales(scales, mode)[..., None]
    values = np.where(by == 0, 0, groups / np.where(by == 0, 1, by)).reshape(w.shape)
    if coding.bits == 8:
        return packed_of(to_e4m3(values), 8)
    apart = np.abs(values[..., None] - E2M1)
    return packed_of(np.argmin(apart, axis=-1), 4)


def _scales(scales: Array, mode: str) -> Array:
    if mode == "nvfp4":
        return E4M3[scales]
    return (2.0 ** (scales.astype(np.float64) - 127)).astype(np.float32)


def values_of(
    packed: Array, scales: Array, biases: Array | None, group_size: int, bits: int, mode: str
) -> Array:
    """Values of a quantised array, f32."""
    codes = codes_of(packed, bits)
    if mode == "affine":
        assert biases is not None
        by, more = (np.repeat(p.astype(np.float32), group_size, axis=-1) for p in (scales, biases))
        return codes.astype(np.float32) * by + more
    numbers = E2M1[codes] if bits == 4 else E4M3[codes]
    return numbers * np.repeat(_scales(scales, mode), group_size, axis=-1)


@twin
def unpacked(
    packed: Array,
    scales: Array,
    biases: Array | None = None,
    *,
    group_size: int,
    bits: int,
    mode: str,
    dtype: DType = F32,
) -> Array:
    """Values of codes."""
    return values_of(packed, scales, biases, group_size, bits, mode)


@twin
def packed_matmul(
    x: Array,
    packed: Array,
    scales: Array,
    biases: Array | None,
    lhs: Array,
    rhs: Array,
    *,
    transpose: bool,
    group_size: int,
    bits: int,
    mode: str,
) -> Array:
    """Products of chosen matrices with unpacked ones."""
    w = values_of(packed, scales, biases, group_size, bits, mode)
    return gathered_matmul(x, np.swapaxes(w, -1, -2) if transpose else w, lhs, rhs)


@twin
def gathered_matmul(a: Array, b: Array, lhs: Array, rhs: Array) -> Array:
    """Products of chosen matrices."""
    left, right = (ids.astype(np.uint32).clip(max=len(m) - 1) for ids, m in ((lhs, a), (rhs, b)))
    return np.matmul(a[left].astype(np.float32), b[right].astype(np.float32))
