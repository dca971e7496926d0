"""Conversion of a tensor's bytes to NumPy: apply strides, widen bf16, dequantise blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import BF16, DType, bf16_to_f32
from wgpu_backend.files.quantize import decode_blocks
from wgpu_backend.graph.spec import Spec

Array = NDArray[Any]


def decode(data: bytes | memoryview, spec: Spec) -> Array:
    """Copy a tensor's values out of its storage; f16 stays f16, bf16 becomes f32."""
    assert spec.dtype.numpy is not None
    flat = np.frombuffer(data, spec.dtype.numpy, count=len(data) // spec.dtype.numpy.itemsize)
    view = apply_strides(flat, spec)
    return bf16_to_f32(view) if spec.dtype == BF16 else view.copy()


def decode_dense(data: bytes, shape: tuple[int, ...], dtype: DType) -> Array:
    """Copy the values of a dense tensor out of its bytes, as `decode` does, in less time."""
    assert dtype.numpy is not None
    values = np.ndarray(shape, dtype.numpy, data)
    # By name: comparing types takes longer than all else here.
    return bf16_to_f32(values) if dtype.name == BF16.name else values.copy()


def apply_strides(flat: Array, spec: Spec) -> Array:
    """View a flat array with a spec's shape, strides and offset."""
    if spec.size == 0:
        return np.empty(spec.shape, flat.dtype)
    strides = tuple(s * flat.itemsize for s in spec.strides)
    return np.lib.stride_tricks.as_strided(flat[spec.offset :], spec.shape, strides)


def whole(values: Array, kind: np.dtype[np.generic]) -> Array:
    """Convert to an integer type: integers keep their low bits, floats saturate, NaN becomes 0."""
    if values.dtype.kind in "biu":
        return values.astype(kind)
    low, high = np.iinfo(kind.name).min, np.iinfo(kind.name).max
    numbers = np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0)
    # Both ends excluded: the largest integer of 64 bits is not an f64.
    inside = (numbers > low) & (numbers < high)
    ends = np.where(numbers > 0, np.array(high, kind), np.array(low, kind))
    return np.where(inside, np.where(inside, numbers, 0).astype(kind), ends)


def dequantise(dtype: DType, data: bytes | memoryview, spec: Spec) -> Array:
    """Dequantise a weight to f32, from its bytes in a GGUF file."""
    raw = np.frombuffer(data, np.uint8)
    if dtype == BF16:
        return bf16_to_f32(raw.view(np.uint16)).reshape(spec.shape)
    if not dtype.quantised:
        assert dtype.numpy is not None
        values = raw.view(dtype.numpy).reshape(spec.shape)
        return values.astype(np.float32) if values.dtype == np.float16 else values.copy()
    return decode_blocks(dtype, raw.reshape(-1, dtype.block_nbytes)).reshape(spec.shape)
