"""Quantised arrays in MLX's layout: weights packed in words of u32 along the last axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.elementwise import abs, isnan, round
from wgpu_backend.array.manipulation import view
from wgpu_backend.array.operators import clip, maximum, where
from wgpu_backend.array.promotion import as_node, promote_operands, to_floats
from wgpu_backend.array.searching import as_ids
from wgpu_backend.array.types import FLOATING
from wgpu_backend.dtypes import BF16, F16, F32, I32, U8, U16, U32, as_dtype
from wgpu_backend.errors import DTypeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.mlx_quant import products, quantising
from wgpu_backend.ops.mlx_quant.modes import get_coding

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

# 1.75 · 2⁸: the bits above it mean NaN.
LARGEST_FP8 = 448.0


def quantize(
    w: Array,
    /,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
) -> tuple[Array, ...]:
    """Return packed words, scales, and for ``affine`` biases of a matrix.

    Parameters
    ----------
    w : (..., rows, values), floats
    group_size, bits : int or None
        None is the default of the mode: 64 and 4 for ``affine``.
    mode : str
        ``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``.
    """
    node = to_floats(as_node("quantize", w))
    if mode == "affine":
        made = quantising.affine_quantise(node, group_size or 64, bits or 4)
        return wrap(made[0]), *(wrap(convert(p, node.spec.dtype)) for p in made[1:])
    get_coding("quantize", mode, group_size, bits)
    return tuple(wrap(p) for p in quantising.float_quantise(node, mode))


def dequantize(
    w: Array,
    /,
    scales: Array,
    biases: Array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    global_scale: Any = None,
    dtype: Any = None,
) -> Array:
    """Decode an array that `quantize` encoded.

    Parameters
    ----------
    w, scales, biases
        See `quantize`.
    group_size, bits, mode
        As it was quantised.
    global_scale : number, array of one, or None
        Multiplied with all values, as nvfp4's files may have it.
    dtype : DType or None
        float32, float16 or bfloat16; None is that of the scales, and bfloat16 where those are
        bytes.
    """
    planes = _planes("dequantize", w, scales, biases)
    own = planes[1].spec.dtype
    kind = (own if own in FLOATING else BF16) if dtype is None else as_dtype(dtype)
    first = F32 if global_scale is not None else kind
    y = wrap(quantising.dequantised_array(*planes, group_size, bits, mode, first))
    return y if global_scale is None else (y * global_scale).astype(kind)


def quantized_matmul(
    x: Array,
    w: Array,
    /,
    scales: Array,
    biases: Array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
) -> Array:
    """Multiply by a quantised matrix, ``x @ w.T``, or ``x @ w`` without `transpose`.

    Sums are in float32, the result is of the type of `x`. See `quantize` for the rest.
    """
    node = to_floats(as_node("quantized_matmul", x))
    planes = _planes("quantized_matmul", w, scales, biases)
    y = products.quantised_matmul(node, *planes, transpose, group_size, bits, mode)
    return wrap(convert(y, node.spec.dtype))


def _planes(
    name: str, w: Array, scales: Array, biases: Array | None
) -> tuple[Node, Node, Node | None]:
    third = None if biases is None else as_node(name, biases)
    return as_node(name, w), as_node(name, scales), third


def gather_mm(
    a: Array,
    b: Array,
    /,
    lhs_indices: Any = None,
    rhs_indices: Any = None,
    *,
    sorted_indices: bool = False,
) -> Array:
    """Multiply matrices that ids choose out of two batches.

    Parameters
    ----------
    a : (..., n, k), floats
    b : (..., k, m), floats
    lhs_indices, rhs_indices : integers that broadcast, or None
        Which matrices, leading axes counted as one; None takes all in order.
    sorted_indices : bool
        A hint, which changes nothing.
    """
    left, right = promote_operands("gather_mm", a, b)
    if left.spec.dtype not in FLOATING:
        raise DTypeError(f"gather_mm: {left.spec.dtype}, needs floats")
    ids = _two_ids("gather_mm", left, lhs_indices, rhs_indices)
    return wrap(convert(products.gather_mm(left, right, *ids), left.spec.dtype))


def _two_ids(name: str, x: Node, lhs: Any, rhs: Any) -> tuple[Node | None, Node | None]:
    left, right = (None if ids is None else as_ids(name, ids, x) for ids in (lhs, rhs))
    return left, right


def gather_qmm(
    x: Array,
    w: Array,
    /,
    scales: Array,
    biases: Array | None = None,
    lhs_indices: Any = None,
    rhs_indices: Any = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    sorted_indices: bool = False,
) -> Array:
    """Multiply by quantised matrices that ids choose; see `gather_mm`, `quantize`."""
    node = to_floats(as_node("gather_qmm", x))
    planes = _planes("gather_qmm", w, scales, biases)
    ids = _two_ids("gather_qmm", node, lhs_indices, rhs_indices)
    y = products.gather_qmm(node, *planes, *ids, transpose, group_size, bits, mode)
    return wrap(convert(y, node.spec.dtype))


def from_fp8(x: Array, /, dtype: Any = BF16) -> Array:
    """Convert bytes in E4M3 to floats; it has no infinity (Micikevicius et al. 2022, table 1)."""
    node = as_node("from_fp8", x)
    if node.spec.dtype != U8:
        raise DTypeError(f"from_fp8: {node.spec.dtype}, needs uint8")
    bits = wrap(convert(node, U16))
    # E4M3 has a bias of 7, float16 of 15: the same bits as a float16 are 2⁻⁸ of the value,
    # subnormals included.
    halves = view(((bits & 0x80) << 8) | ((bits & 0x7F) << 7), F16)
    values = where((bits & 0x7F) == 0x7F, np.float32("nan"), halves.astype(F32) * 256)
    return values.astype(dtype)


def to_fp8(x: Array, /) -> Array:
    """Convert floats to bytes in E4M3, rounded to nearest even; larger ones become 448."""
    values = wrap(convert(to_floats(as_node("to_fp8", x)), F32))
    size = clip(abs(values), None, LARGEST_FP8)
    # The exponent as float32 stores it; 2⁻⁶ is the smallest normal number of E4M3.
    exponent = maximum(view(size, I32) >> 23, 127 - 6)
    # Three bits of mantissa: neighbours differ by 2⁻³ of the power of two.
    step = view((exponent - 3) << 23, F32)
    halves = view((round(size / step) * step * 2**-8).astype(F16), U16).astype(U32)
    sign = view(values, U32) >> 31 << 7
    return where(isnan(values), sign | 0x7F, sign | (halves >> 7)).astype(U8)
