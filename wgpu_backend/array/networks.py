"""What networks are made of: softmax, convolutions, products of quantised and chosen matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from wgpu_backend.array.core import wrap
from wgpu_backend.array.lifting import as_node, converted, floating
from wgpu_backend.dtypes import I32, DType, dtype_of
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.conv import convolution, transposed
from wgpu_backend.ops.quantised import products, quantising
from wgpu_backend.ops.reduce import norm
from wgpu_backend.ops.shape.shapes import reshaped, swapped
from wgpu_backend.ops.shape.views import viewed

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Sizes = int | Sequence[int]
Pads = int | Sequence[int] | tuple[Sequence[int], Sequence[int]]


def softmax(x: Array, /, axis: int | Sequence[int] | None = None, *, precise: bool = True) -> Array:
    """Exponentials that sum to one over axes, all by default; computed in float32.

    Parameters
    ----------
    x : (...), any numbers
    axis : int, sequence of int, or None
    precise : bool
        Taken for compatibility.
    """
    del precise
    node = floating(as_node("softmax", x))
    axes = range(len(node.spec.shape)) if axis is None else extents("softmax: axis", axis)
    found = [node.spec.axis(a, "softmax") for a in axes]
    return wrap(converted(_softmax(node, found), node.spec.dtype))


def _softmax(x: Node, axes: Sequence[int]) -> Node:
    shape = x.spec.shape
    if len(axes) == 1:
        turned = swapped(x, axes[0])
        rows = reshaped(turned, (-1, shape[axes[0]])) if x.spec.size else turned
        return swapped(reshaped(norm.softmax(rows), turned.spec.shape), axes[0])
    if sorted(axes) != list(range(len(shape) - len(axes), len(shape))):
        raise ShapeError(f"softmax: axes {tuple(axes)} of {shape}, needs one, or the last ones")
    kept = shape[: len(shape) - len(axes)]
    rows = reshaped(x, (_count(kept), x.spec.size // max(_count(kept), 1)))
    return reshaped(norm.softmax(rows), shape)


def _count(shape: Sequence[int]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found


def _each(value: Sizes, axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


def conv_general(
    x: Array,
    weight: Array,
    /,
    stride: Sizes = 1,
    padding: Pads = 0,
    kernel_dilation: Sizes = 1,
    input_dilation: Sizes = 1,
    groups: int = 1,
    flip: bool = False,
) -> Array:
    """Convolution over one to three axes, channels last.

    Parameters
    ----------
    x : (n, ..., c)
    weight : (o, ..., c / groups)
    stride, kernel_dilation, input_dilation : int or sequence of int
        Of each axis; `input_dilation` puts that many steps between neighbours of `x`.
    padding : int, sequence of int, or two of them
        At both ends of each axis, or before and behind.
    groups : int
    flip : bool
        The kernel is turned round.

    Raises
    ------
    ShapeError
        Channels do not fit, or the kernel is larger than what it sees.
    """
    data, kernel = floating(as_node("conv", x)), floating(as_node("conv", weight))
    axes = len(data.spec.shape) - 2
    if axes not in (1, 2, 3) or len(kernel.spec.shape) != axes + 2:
        shapes = f"x {data.spec.shape} and weight {kernel.spec.shape}"
        raise ShapeError(f"conv: {shapes}, needs 3 to 5 axes, as many of both")
    missing = 3 - axes
    y = convolution.convolve(
        _with_axes(data, missing),
        _with_axes(kernel, missing),
        strides=(1,) * missing + _each(stride, axes),
        paddings=[(0, 0)] * missing + _pairs(padding, axes),
        dilations=(1,) * missing + _each(kernel_dilation, axes),
        groups=groups,
        spread=(1,) * missing + _each(input_dilation, axes),
        flipped=flip,
    )
    shape = (y.spec.shape[0], *y.spec.shape[1 + missing :])
    return wrap(converted(reshaped(y, shape), data.spec.dtype))


def _pairs(padding: Pads, axes: int) -> list[tuple[int, int]]:
    """Values before and behind each axis."""
    if isinstance(padding, int):
        return [(padding, padding)] * axes
    before, behind = padding if _is_two(padding) else (padding, padding)
    pairs = zip(cast("Sequence[int]", before), cast("Sequence[int]", behind), strict=True)
    return [(int(a), int(b)) for a, b in pairs]


def _is_two(padding: Any) -> bool:
    """Whether paddings are given before and behind."""
    return not isinstance(padding[0], int)


def _with_axes(node: Node, missing: int) -> Node:
    """View with axes of one value after the first."""
    spec = node.spec
    shape = (spec.shape[0], *(1,) * missing, *spec.shape[1:])
    strides = (spec.strides[0], *(0,) * missing, *spec.strides[1:])
    return viewed(node, Spec(shape, spec.dtype, strides, spec.offset))


def conv1d(
    x: Array,
    weight: Array,
    /,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Array:
    """Convolution over length: (n, length, c) and (o, k, c / groups); see `conv_general`."""
    return conv_general(x, weight, stride, padding, dilation, groups=groups)


def conv2d(
    x: Array,
    weight: Array,
    /,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """Convolution over height and width; see `conv_general`."""
    return conv_general(x, weight, stride, _each(padding, 2), dilation, groups=groups)


def conv3d(
    x: Array,
    weight: Array,
    /,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """Convolution over depth, height and width; see `conv_general`."""
    return conv_general(x, weight, stride, _each(padding, 3), dilation, groups=groups)


def conv_transpose1d(
    x: Array,
    weight: Array,
    /,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    output_padding: int = 0,
    groups: int = 1,
) -> Array:
    """Transposed convolution over length; see `conv_transpose2d`."""
    nodes = floating(as_node("conv", x)), floating(as_node("conv", weight))
    y = transposed.conv_transpose1d(*nodes, stride, padding, dilation, output_padding, groups)
    return wrap(converted(y, nodes[0].spec.dtype))


def conv_transpose2d(
    x: Array,
    weight: Array,
    /,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    output_padding: Sizes = 0,
    groups: int = 1,
) -> Array:
    """What a convolution's gradient is: each value is spread over a window.

    Parameters
    ----------
    x : (n, h, w, c)
    weight : (o, kh, kw, c / groups)
    stride, padding, dilation, output_padding : int or two int
    groups : int
    """
    return _transposed(
        transposed.conv_transpose2d, 2, x, weight, stride, padding, dilation, output_padding, groups
    )


def conv_transpose3d(
    x: Array,
    weight: Array,
    /,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    output_padding: Sizes = 0,
    groups: int = 1,
) -> Array:
    """Transposed convolution over depth, height and width; see `conv_transpose2d`."""
    return _transposed(
        transposed.conv_transpose3d, 3, x, weight, stride, padding, dilation, output_padding, groups
    )


def _transposed(op: Any, axes: int, x: Array, weight: Array, *sizes: Any) -> Array:
    *each, groups = sizes
    nodes = floating(as_node("conv", x)), floating(as_node("conv", weight))
    y: Node = op(*nodes, *(_each(s, axes) for s in each), groups)
    return wrap(converted(y, nodes[0].spec.dtype))


def quantize(
    w: Array, /, group_size: int = 64, bits: int = 4, mode: str = "affine"
) -> tuple[Array, ...]:
    """Groups of each row as a few bits with a scale.

    Parameters
    ----------
    w : (..., rows, values), floats; values are a multiple of the group
    group_size, bits : int
        Of ``affine``; the other modes have their own.
    mode : str
        ``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``.

    Returns
    -------
    packed, scales, biases
        ``affine`` has biases, the others have not.
    """
    node = floating(as_node("quantize", w))
    if mode == "affine":
        return tuple(map(wrap, quantising.affine_quantise(node, group_size, bits)))
    return tuple(map(wrap, quantising.float_quantise(node, mode)))


def dequantize(
    w: Array,
    /,
    scales: Array,
    biases: Array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    dtype: Any = None,
) -> Array:
    """Values of what `quantize` made, in the type of the scales or another."""
    planes = _planes(w, scales, biases)
    kind = _float_type(scales, mode) if dtype is None else dtype_of(dtype)
    return wrap(quantising.dequantised_array(*planes, group_size, bits, mode, kind))


def _float_type(scales: Array, mode: str) -> DType:
    return scales.dtype if mode == "affine" else dtype_of("bf16")


def _planes(w: Array, scales: Array, biases: Array | None) -> tuple[Node, Node, Node | None]:
    beside = None if biases is None else as_node("quantised", biases)
    return as_node("quantised", w), as_node("quantised", scales), beside


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
    """Product with a quantised matrix: ``x @ w.T``, or ``x @ w`` without `transpose`."""
    node = floating(as_node("quantized_matmul", x))
    planes = _planes(w, scales, biases)
    y = products.quantised_matmul(node, *planes, transpose, group_size, bits, mode)
    return wrap(converted(y, node.spec.dtype))


def _ids(ids: Array | None) -> Node | None:
    return None if ids is None else converted(as_node("gather", ids), I32)


def gather_mm(
    a: Array,
    b: Array,
    /,
    lhs_indices: Array | None = None,
    rhs_indices: Array | None = None,
    *,
    sorted_indices: bool = False,
) -> Array:
    """Products of matrices that indices choose: ``a[lhs] @ b[rhs]``.

    Parameters
    ----------
    a : (..., n, k), b : (..., k, m)
    lhs_indices, rhs_indices : integers that broadcast, or None
        Of matrices, counted over all leading axes; None takes each in turn.
    sorted_indices : bool
        Taken for compatibility.
    """
    del sorted_indices
    left, right = floating(as_node("gather_mm", a)), floating(as_node("gather_mm", b))
    y = products.gather_mm(left, right, _ids(lhs_indices), _ids(rhs_indices))
    return wrap(converted(y, left.spec.dtype))


def gather_qmm(
    x: Array,
    w: Array,
    /,
    scales: Array,
    biases: Array | None = None,
    lhs_indices: Array | None = None,
    rhs_indices: Array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    sorted_indices: bool = False,
) -> Array:
    """`gather_mm` with quantised matrices; see `quantized_matmul`."""
    del sorted_indices
    node = floating(as_node("gather_qmm", x))
    planes = _planes(w, scales, biases)
    chosen = _ids(lhs_indices), _ids(rhs_indices)
    y = products.gather_qmm(node, *planes, *chosen, transpose, group_size, bits, mode)
    return wrap(converted(y, node.spec.dtype))
