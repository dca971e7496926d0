"""Transposed convolutions over channels-last tensors.

Each is a convolution of values with zeros between them, with the kernel's last tap first, so every
value of the result gathers its own terms.
"""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import extents
from wgpu_backend.ops.check import require, require_rank
from wgpu_backend.ops.conv.convolution import convolve, with_axes, without_axes
from wgpu_backend.ops.conv.extents import AXES, Padding, padded_sides


def conv_transpose1d(
    x: Node,
    weight: Node,
    stride: int = 1,
    padding: Padding = 0,
    dilation: int = 1,
    output_padding: int = 0,
    groups: int = 1,
) -> Node:
    """Apply a transposed convolution over one axis; see `conv_transpose2d`.

    Parameters
    ----------
    x : (n, length, c)
        f32, f16 or bf16.
    weight : (o, k, c / groups)
        f32, f16 or bf16.

    Returns
    -------
    (n, ol, o), f32.
    """
    steps = ((stride,), (padding,), (dilation,), (output_padding,))
    return _transpose_conv("conv_transpose1d", 1, x, weight, *steps, groups)


def conv_transpose2d(
    x: Node,
    weight: Node,
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    dilations: Sequence[int] = (1, 1),
    output_paddings: Sequence[int] = (0, 0),
    groups: int = 1,
) -> Node:
    """Apply a transposed convolution over height and width: the gradient of `conv2d`.

    Source: Dumoulin & Visin 2016, "A guide to convolution arithmetic", relationship 14.

    Parameters
    ----------
    x : (n, h, w, c)
        f32, f16 or bf16.
    weight : (o, kh, kw, c / groups)
        f32, f16 or bf16.
    strides, dilations : two int each
        Of height and width.
    paddings : two int, or pairs of int
        What the result has less on both sides, or before and after.
    output_paddings : two int
        What it has more after; fewer than the stride.

    Returns
    -------
    (n, oh, ow, o), f32
        ``oh = (h - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1``.

    Raises
    ------
    ShapeError
        Channels do not fit, a number is out of range, or nothing would be left.
    """
    steps = (strides, paddings, dilations, output_paddings)
    return _transpose_conv("conv_transpose2d", 2, x, weight, *steps, groups)


def conv_transpose3d(
    x: Node,
    weight: Node,
    strides: Sequence[int] = (1, 1, 1),
    paddings: Sequence[Padding] = (0, 0, 0),
    dilations: Sequence[int] = (1, 1, 1),
    output_paddings: Sequence[int] = (0, 0, 0),
    groups: int = 1,
) -> Node:
    """Apply a transposed convolution over depth, height and width; see `conv_transpose2d`.

    Parameters
    ----------
    x : (n, d, h, w, c)
        f32, f16 or bf16.
    weight : (o, kd, kh, kw, c / groups)
        f32, f16 or bf16.
    strides, paddings, dilations, output_paddings : three int each

    Returns
    -------
    (n, od, oh, ow, o), f32.
    """
    steps = (strides, paddings, dilations, output_paddings)
    return _transpose_conv("conv_transpose3d", 3, x, weight, *steps, groups)


def _transpose_conv(
    name: str,
    axes: int,
    x: Node,
    weight: Node,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
    output_paddings: Sequence[int],
    groups: int,
) -> Node:
    for operand, node in (("x", x), ("weight", weight)):
        require_rank(name, operand, node, axes + 2, axes + 2)
    sides = padded_sides(paddings)
    numbers = {
        "strides": extents(f"{name}: strides", strides),
        "paddings": sides,
        "dilations": extents(f"{name}: dilations", dilations),
        "output_paddings": extents(f"{name}: output_paddings", output_paddings),
    }
    for what, values in numbers.items():
        require(len(values) == axes, ShapeError, f"{name}: {len(values)} {what}, needs {axes}")
    margins = [
        _margin(f"{name}: along the {axis}", *of_axis)
        for axis, *of_axis in zip(
            AXES[-axes:], weight.spec.shape[1:-1], *numbers.values(), strict=True
        )
    ]
    # One kernel for one to three axes: a missing one has a single value.
    missing, ones = 3 - axes, (1,) * (3 - axes)
    y = convolve(
        with_axes(x, missing),
        with_axes(weight, missing),
        # The strides spread the operand instead: the gradient of a convolution.
        strides=(1, 1, 1),
        paddings=(*(0,) * missing, *margins),
        dilations=(*ones, *dilations),
        groups=groups,
        spread=(*ones, *strides),
        # The gradient runs through the kernel from its other end.
        flipped=True,
    )
    return without_axes(y, missing)


def _margin(
    where: str, kernel: int, stride: int, padding: tuple[int, int], dilation: int, more: int
) -> tuple[int, int]:
    """Return how many zeros to add before and after an axis that a stride has spread apart."""
    require(
        stride > 0 and dilation > 0 and min(padding) >= 0 and kernel > 0,
        ShapeError,
        f"{where} kernel {kernel}, stride {stride}, padding {padding}, dilation {dilation}; needs "
        "padding from 0 and the others from 1",
    )
    require(
        0 <= more < max(stride, dilation),
        ShapeError,
        f"{where} output padding {more}, needs 0 to {max(stride, dilation) - 1}: less than the "
        "stride or the dilation",
    )
    # A convolution over spread values with a turned kernel sees this far beyond each end.
    reach = dilation * (kernel - 1)
    return reach - padding[0], reach - padding[1] + more
