"""Convolutions over channels-last arrays; PyTorch has channels before the kernel's axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from wgpu_backend.array.core import wrap
from wgpu_backend.array.creation import zeros
from wgpu_backend.array.nn.calls import as_floats, require_width
from wgpu_backend.array.nn.module import Module
from wgpu_backend.array.nn.starting import draw_weights
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.conv import convolution, transposed
from wgpu_backend.ops.conv.extents import Padding

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Counts = int | Sequence[int]
Paddings = int | Sequence[Padding]


def for_axes(value: Any, axes: int) -> tuple[Any, ...]:
    """A number for each axis; one number is for all."""
    return (value,) * axes if isinstance(value, int) else tuple(value)


class _Convolution(Module):
    """What convolutions have in common, whatever the number of axes."""

    axes: ClassVar[int]
    op: ClassVar[Callable[..., Node]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Counts,
        stride: Counts = 1,
        padding: Paddings = 0,
        dilation: Counts = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        kernel = for_axes(kernel_size, self.axes)
        self.weight = draw_weights((out_channels, *kernel, in_channels // groups))
        self.bias = zeros((out_channels,)) if bias else None
        self._options = {
            "strides": for_axes(stride, self.axes),
            "paddings": for_axes(padding, self.axes),
            "dilations": for_axes(dilation, self.axes),
        }
        self._groups = groups

    def __call__(self, x: Array) -> Array:
        """(n, ..., in_channels) to (n, ..., out_channels), float32."""
        name = type(self).__name__
        node = require_width(name, as_floats(name, x), self.weight.shape[-1] * self._groups)
        y = wrap(self._convolved(node))
        return y if self.bias is None else y + self.bias

    def _convolved(self, x: Node) -> Node:
        return type(self).op(x, self.weight.node, **self._options, groups=self._groups)


class Conv1d(_Convolution):
    """Convolution over (n, length, channels).

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, dilation : int
        A padding may be a sequence of one pair, before and behind.
    groups : int
    bias : bool

    Attributes
    ----------
    weight : (out_channels, kernel_size, in_channels / groups)
    bias : (out_channels,) or None
    """

    axes = 1
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (0, 2, 1)}

    def _convolved(self, x: Node) -> Node:
        strides, paddings, dilations = self._options.values()
        return convolution.conv1d(
            x, self.weight.node, strides[0], paddings[0], dilations[0], self._groups
        )


class Conv2d(_Convolution):
    """Convolution over (n, height, width, channels).

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, dilation : int or two int
        Of height and width; a padding may be two pairs, before and behind.
    groups : int
    bias : bool

    Attributes
    ----------
    weight : (out_channels, height, width, in_channels / groups)
    bias : (out_channels,) or None
    """

    axes = 2
    op = staticmethod(convolution.conv2d)
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (0, 2, 3, 1)}


class Conv3d(_Convolution):
    """Convolution over (n, depth, height, width, channels).

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, dilation : int or three int
        A padding may be three pairs, before and behind.
    groups : int
    bias : bool

    Attributes
    ----------
    weight : (out_channels, depth, height, width, in_channels / groups)
    bias : (out_channels,) or None
    """

    axes = 3
    op = staticmethod(convolution.conv3d)
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (0, 2, 3, 4, 1)}


class _Transposed(Module):
    """What transposed convolutions have in common."""

    axes: ClassVar[int]
    op: ClassVar[Callable[..., Node]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Counts,
        stride: Counts = 1,
        padding: Counts = 0,
        dilation: Counts = 1,
        output_padding: Counts = 0,
        bias: bool = True,
    ) -> None:
        kernel = for_axes(kernel_size, self.axes)
        self.weight = draw_weights((out_channels, *kernel, in_channels))
        self.bias = zeros((out_channels,)) if bias else None
        given = (stride, padding, dilation, output_padding)
        self._options = tuple(for_axes(value, self.axes) for value in given)

    def __call__(self, x: Array) -> Array:
        """(n, ..., in_channels) to (n, ..., out_channels), float32."""
        name = type(self).__name__
        node = require_width(name, as_floats(name, x), self.weight.shape[-1])
        y = wrap(self._convolved(node))
        return y if self.bias is None else y + self.bias

    def _convolved(self, x: Node) -> Node:
        return type(self).op(x, self.weight.node, *self._options)


class ConvTranspose1d(_Transposed):
    """Transposed convolution over (n, length, channels); see `ConvTranspose2d`."""

    axes = 1
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (1, 2, 0)}

    def _convolved(self, x: Node) -> Node:
        options = (value[0] for value in self._options)
        return transposed.conv_transpose1d(x, self.weight.node, *options)


class ConvTranspose2d(_Transposed):
    """Transposed convolution over (n, height, width, channels).

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, dilation, output_padding : int or two int
    bias : bool

    Attributes
    ----------
    weight : (out_channels, height, width, in_channels)
    bias : (out_channels,) or None
    """

    axes = 2
    op = staticmethod(transposed.conv_transpose2d)
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (1, 2, 3, 0)}


class ConvTranspose3d(_Transposed):
    """Transposed convolution over (n, depth, height, width, channels); see `ConvTranspose2d`."""

    axes = 3
    op = staticmethod(transposed.conv_transpose3d)
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (1, 2, 3, 4, 0)}
