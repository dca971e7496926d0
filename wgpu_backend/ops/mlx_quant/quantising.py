"""Quantising arrays as MLX does, and back: affine_quantise, float_quantise, dequantised_array."""

from __future__ import annotations

import typing

import numpy as np

from wgpu_backend.dtypes import F32, U8, U32, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, permute, slice_axis
from wgpu_backend.ops.check import FLOATS, ceil_div, require, require_dtype, require_rank
from wgpu_backend.ops.mlx_quant.modes import Coding, get_coding, require_packed
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import cast
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import make_view


@op(dense=("w",), trusted=True)
def affine_scales(w: Node, *, group_size: int, bits: int) -> Launch:
    """Compute scale and bias of each group, such that the end of larger magnitude is exact.

    Parameters
    ----------
    w : (..., values)
        f32, f16 or bf16.

    Returns
    -------
    (..., values // group_size, 2), f32
    """
    *batch, values = w.spec.shape
    out = Spec.dense((*batch, values // group_size, 2), F32)
    return Launch(
        out,
        {"w": w},
        # A thread writes both numbers of a group.
        threads=out.size // 2,
        params={"count": out.size // 2, "group_size": group_size, "bins": 2**bits - 1},
        work=w.spec.nbytes,
    )


@affine_scales.reference
def affine_scales_reference(w: Array, *, group_size: int, bits: int) -> Array:
    """Compute scale and bias of each group."""
    groups = split_groups(w, group_size)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    below = np.abs(low) > np.abs(high)
    # MLX's least step: groups of one value have no range.
    size = np.maximum((high - low) / np.float32(2**bits - 1), np.float32(1e-7))
    edge = typing.cast("Array", np.where(below, low, high))
    scale = typing.cast("Array", np.where(below, size, -size))
    # As MLX does: by this scale the far end is a whole number of steps.
    code = np.rint(edge / scale)
    met = code != 0
    scale = np.where(met, edge / np.where(met, code, 1), scale)
    return np.stack([scale, np.where(met, edge, 0)], axis=-1).astype(np.float32)


@op(dense=("w", "scales"), trusted=True)
def affine_packed(w: Node, scales: Node, *, group_size: int, bits: int) -> Launch:
    """Encode values by `affine_scales`, packed from the low bits on.

    Parameters
    ----------
    w : (..., values)
        f32, f16 or bf16.
    scales : (..., values // group_size, 2)
        f32.

    Returns
    -------
    (..., values * bits // 32), u32
    """
    *batch, values = w.spec.shape
    return Launch(
        Spec.dense((*batch, values * bits // 32), U32),
        {"w": w, "scales": scales},
        # 32 codes of any width fill whole words.
        threads=w.spec.size // 32,
        params={"count": w.spec.size // 32, "group_size": group_size, "bins": 2**bits - 1},
        choices={"BITS": bits},
        work=w.spec.nbytes,
    )


@affine_packed.reference
def affine_packed_reference(w: Array, scales: Array, *, group_size: int, bits: int) -> Array:
    """Pack the nearest codes."""
    groups = split_groups(w, group_size)
    nearest = np.rint((groups - scales[..., 1:]) / scales[..., :1])
    return pack_codes(np.clip(nearest, 0, 2**bits - 1).reshape(w.shape), bits)


@op(dense=("w",), trusted=True)
def float_scales(w: Node, *, mode: str) -> Launch:
    """Compute the scale of each group that just holds its largest value, as E8M0 or E4M3 bits.

    Parameters
    ----------
    w : (..., values)
        f32, f16 or bf16.

    Returns
    -------
    (..., groups), u8
    """
    coding = get_coding("float_scales", mode, None, None)
    *batch, values = w.spec.shape
    out = Spec.dense((*batch, values // coding.group_size), U8)
    return Launch(
        out,
        {"w": w},
        # A thread writes one word of four scales.
        threads=ceil_div(out.size, 4),
        params={"count": out.size},
        choices={"GROUP": coding.group_size, "BITS": coding.bits},
        work=w.spec.nbytes,
    )


@float_scales.reference
def float_scales_reference(w: Array, *, mode: str) -> Array:
    """Return the largest magnitudes as small floats."""
    coding = get_coding("float_scales", mode, None, None)
    groups = np.abs(split_groups(w, coding.group_size))
    # The largest numbers of E2M1 and E4M3.
    scale = groups.max(axis=-1) / np.float32(6 if coding.bits == 4 else 448)
    if mode == "nvfp4":
        return to_e4m3(scale)
    # Rounded up to a power of two, so that no value is above the largest code.
    half, power = np.frexp(scale)
    return np.where(scale == 0, 127, power + 127 - (half == 0.5)).astype(np.uint8)


@op(dense=("w", "scales"), trusted=True)
def float_packed(w: Node, scales: Node, *, mode: str) -> Launch:
    """Encode values over their `float_scales` as E2M1 or E4M3 bits, packed from the low bits on.

    Parameters
    ----------
    w : (..., values)
        f32, f16 or bf16.
    scales : (..., groups)
        u8.

    Returns
    -------
    (..., values * bits // 32), u32
    """
    coding = get_coding("float_packed", mode, None, None)
    *batch, values = w.spec.shape
    out = Spec.dense((*batch, coding.words(values)), U32)
    return Launch(
        out,
        {"w": w, "scales": scales},
        threads=out.size,
        params={"count": out.size},
        choices={"GROUP": coding.group_size, "BITS": coding.bits},
        work=w.spec.nbytes,
    )


@float_packed.reference
def float_packed_reference(w: Array, scales: Array, *, mode: str) -> Array:
    """Pack values over their scales as small floats."""
    coding = get_coding("float_packed", mode, None, None)
    groups = split_groups(w, coding.group_size)
    by = _scales(scales, mode)[..., None]
    # A group of zeros may have a scale of 0.
    values = np.where(by == 0, 0, groups / np.where(by == 0, 1, by)).reshape(w.shape)
    if coding.bits == 8:
        return pack_codes(to_e4m3(values), 8)
    apart = np.abs(values[..., None] - E2M1)
    # Of two as near, the first has the smaller magnitude.
    return pack_codes(np.argmin(apart, axis=-1), 4)


@op(dense=("packed", "scales", "biases"), trusted=True)
def unpacked(
    packed: Node,
    scales: Node,
    biases: Node | None = None,
    *,
    group_size: int,
    bits: int,
    mode: str,
    dtype: DType = F32,
) -> Launch:
    """Decode the values of an array from its codes.

    Parameters
    ----------
    packed : (..., values * bits // 32)
        u32.
    scales : (..., values // group_size)
        Floats, or bits of small floats as u8.
    biases : as `scales`, or None
    dtype : DType
        f32, f16 or bf16.

    Returns
    -------
    (..., values), `dtype`
    """
    coding = Coding(mode, group_size, bits)
    *batch, words = packed.spec.shape
    out = Spec.dense((*batch, words * 32 // bits), dtype)
    return Launch(
        out,
        {"packed": packed, "scales": scales} | ({} if biases is None else {"biases": biases}),
        threads=out.size // 8,
        params={
            "count": out.size // 8,
            "row_values": out.shape[-1],
            "words": words,
            "groups": out.shape[-1] // group_size,
            **({"biases_offset": 0} if biases is None else {}),
        },
        choices=coding.choices,
        work=out.nbytes,
    )


@unpacked.reference
def unpacked_reference(
    packed: Array,
    scales: Array,
    biases: Array | None = None,
    *,
    group_size: int,
    bits: int,
    mode: str,
    dtype: DType = F32,
) -> Array:
    """Decode values from codes."""
    return quantised_values(packed, scales, biases, group_size, bits, mode)


def affine_quantise(w: Node, group_size: int = 64, bits: int = 4) -> tuple[Node, Node, Node]:
    """Quantise groups of a row to equal steps between their smallest and largest values.

    The result is that of MLX's ``quantize``, bit for bit.

    Parameters
    ----------
    w : (..., rows, values), f32, f16 or bf16
        Values are a multiple of the group.
    group_size : int
        32, 64 or 128.
    bits : int
        2, 3, 4, 5, 6 or 8.

    Returns
    -------
    packed : (..., rows, values * bits // 32)
        u32.
    scales, biases : (..., rows, values // group_size)
        The dtype of `w`.

    Raises
    ------
    OptionError
        There are no such groups or bits.
    ShapeError
        Rows are not of whole groups.
    """
    coding = get_coding("affine_quantise", "affine", group_size, bits)
    _require_groups("affine_quantise", w, coding)
    both = affine_scales(w, group_size=group_size, bits=bits)
    packed = affine_packed(w, both, group_size=group_size, bits=bits)
    # Scales and biases alternate; the first axis tells them apart, and each is a view.
    planes = permute(both.spec, (len(both.spec.shape) - 1, *range(len(both.spec.shape) - 1)))
    kind, shape = w.spec.dtype, both.spec.shape[:-1]
    scales, biases = (
        reshape_node(cast(make_view(both, slice_axis(planes, 0, i, i + 1)), dtype=kind), shape)
        for i in (0, 1)
    )
    return packed, scales, biases


def float_quantise(w: Node, mode: str) -> tuple[Node, Node]:
    """Quantise groups of a row to small floats with a shared scale.

    Parameters
    ----------
    w : (..., rows, values), f32, f16 or bf16
        Values are a multiple of the group.
    mode : str
        ``mxfp4``: E2M1, an E8M0 scale every 32. ``mxfp8``: E4M3 with such scales. ``nvfp4``:
        E2M1, an E4M3 scale every 16.

    Returns
    -------
    packed : (..., rows, values * bits // 32)
        u32.
    scales : (..., rows, values // group)
        u8.

    Raises
    ------
    OptionError
        There is no such mode.
    ShapeError
        Rows are not of whole groups.
    """
    coding = get_coding("float_quantise", mode, None, None)
    require(
        coding.mode != "affine", ShapeError, "float_quantise: affine has biases; affine_quantise"
    )
    _require_groups("float_quantise", w, coding)
    scales = float_scales(w, mode=mode)
    return float_packed(w, scales, mode=mode), scales


def _require_groups(name: str, w: Node, coding: Coding) -> None:
    require_rank(name, "w", w, 2, 8)
    require_dtype(name, "w", w, FLOATS)
    require(
        w.spec.shape[-1] % coding.group_size == 0,
        ShapeError,
        f"{name}: rows of w have {w.spec.shape[-1]} values, not a multiple of {coding.group_size}",
    )


def affine_dequantise(
    packed: Node,
    scales: Node,
    biases: Node,
    group_size: int = 64,
    bits: int = 4,
    dtype: DType = F32,
) -> Node:
    """Decode an array that `affine_quantise` made; see `dequantised_array`."""
    return dequantised_array(packed, scales, biases, group_size, bits, "affine", dtype)


def dequantised_array(
    packed: Node,
    scales: Node,
    biases: Node | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    dtype: DType = F32,
) -> Node:
    """Decode a quantised array.

    Parameters
    ----------
    packed : (..., rows, values * bits // 32)
        u32.
    scales : (..., rows, values // group_size)
        f32, f16 or bf16; u8 but for ``affine``.
    biases : as `scales`; None but for ``affine``
    group_size, bits : int or None
        None is what the mode has as a rule: 64 and 4 for ``affine``.
    mode : str
        ``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``.
    dtype : DType
        f32, f16 or bf16.

    Returns
    -------
    (..., rows, values), `dtype`

    Raises
    ------
    OptionError, DTypeError, ShapeError
        There is no such mode, or planes do not belong together.
    """
    coding = get_coding("dequantise", mode, group_size, bits)
    require_packed("dequantise", packed, scales, biases, coding)
    require(dtype in FLOATS, ShapeError, f"dequantise: to {dtype}, needs f32, f16 or bf16")
    return unpacked(packed, scales, biases, **coding._asdict(), dtype=dtype)


# A sign, two bits of exponent, one of fraction: OCP Microscaling Formats 1.0.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_BYTES = np.arange(256)
# E4M3: four bits of exponent with bias 7, three of fraction; exponent 0 is subnormal.
_SIZES = np.where(
    _BYTES & 0x78,
    (1 + (_BYTES & 7) / 8) * 2.0 ** (((_BYTES >> 3) & 15) - 7),
    (_BYTES & 7) / 512,
)
E4M3 = np.where(_BYTES & 128, -_SIZES, _SIZES).astype(np.float32)


def unpack_codes(packed: Array, bits: int) -> Array:
    """Unpack the codes of a row from words that hold them from the low bits on."""
    # Little-endian on every host, as files and devices are.
    octets = np.ascontiguousarray(packed, np.dtype("<u4")).view(np.uint8)
    ones = np.unpackbits(octets, axis=-1, bitorder="little")
    apart = ones.reshape(*packed.shape[:-1], packed.shape[-1] * 32 // bits, bits)
    return apart @ (1 << np.arange(bits))


def pack_codes(codes: Array, bits: int) -> Array:
    """Pack codes into words, from the low bits on."""
    ones = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    octets = np.packbits(
        ones.astype(np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] * bits),
        axis=-1,
        bitorder="little",
    )
    return np.ascontiguousarray(octets).view(np.dtype("<u4"))


def split_groups(w: Array, size: int) -> Array:
    """Split rows into groups, on an axis of their own."""
    return w.reshape(*w.shape[:-1], w.shape[-1] // size, size).astype(np.float32)


def to_e4m3(values: Array) -> Array:
    """Return the bits of the nearest E4M3, ties to even, at most 448."""
    size = np.abs(values)
    # Below 2⁻⁶ numbers are subnormal: their step is that of 2⁻⁶.
    exponent = np.maximum(np.floor(np.log2(np.where(size == 0, 1, size))), -6)
    step = 2.0 ** (exponent - 3)
    rounded = np.minimum(np.rint(size / step) * step, 448).astype(np.float32)
    # The first 127 codes are the positive numbers in order; code 127 is NaN.
    codes = np.searchsorted(E4M3[:127], rounded)
    return (codes | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def _scales(scales: Array, mode: str) -> Array:
    if mode == "nvfp4":
        return E4M3[scales]
    # E8M0: an exponent alone, with bias 127.
    return (2.0 ** (scales.astype(np.float64) - 127)).astype(np.float32)


def quantised_values(
    packed: Array, scales: Array, biases: Array | None, group_size: int, bits: int, mode: str
) -> Array:
    """Decode a quantised array to f32."""
    codes = unpack_codes(packed, bits)
    if mode == "affine":
        assert biases is not None
        by, more = (np.repeat(p.astype(np.float32), group_size, axis=-1) for p in (scales, biases))
        return codes.astype(np.float32) * by + more
    numbers = E2M1[codes] if bits == 4 else E4M3[codes]
    return numbers * np.repeat(_scales(scales, mode), group_size, axis=-1)
