"""Convolutions, pooling, resizing and timesteps; channels are the last axis.

PyTorch has channels before the axes of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.creation import zeros
from wgpu_backend.array.nn.layer_helpers import as_floats, as_singles, draw_weights, require_width
from wgpu_backend.array.nn.module import Module
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.conv import convolution, pooling, resizing, timesteps, transposed
from wgpu_backend.ops.conv.extents import Padding

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Counts = int | Sequence[int]
Paddings = int | Sequence[Padding]


def for_axes(value: Any, axes: int) -> tuple[Any, ...]:
    """Return a number for each axis; a single number counts for every axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value)


class _Convolution(Module):
    """The base of convolutions over any number of axes."""

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
        """Map (n, ..., in_channels) to (n, ..., out_channels), float32."""
        name = type(self).__name__
        node = require_width(name, as_floats(name, x), self.weight.shape[-1] * self._groups)
        y = wrap(self._convolve(node))
        return y if self.bias is None else y + self.bias

    def _convolve(self, x: Node) -> Node:
        return type(self).op(x, self.weight.node, **self._options, groups=self._groups)


class Conv1d(_Convolution):
    """Convolution over (n, length, channels).

    Parameters
    ----------
    kernel_size, stride, padding, dilation : int
        A padding may be a sequence of one pair, before and after.

    Attributes
    ----------
    weight : (out_channels, kernel_size, in_channels / groups)
    bias : (out_channels,) or None
    """

    axes = 1
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (0, 2, 1)}

    def _convolve(self, x: Node) -> Node:
        # The op of one axis takes numbers, not sequences.
        strides, paddings, dilations = self._options.values()
        return convolution.conv1d(
            x, self.weight.node, strides[0], paddings[0], dilations[0], self._groups
        )


class Conv2d(_Convolution):
    """Convolution over (n, height, width, channels).

    Parameters
    ----------
    kernel_size, stride, padding, dilation : int or two int
        Of height and width; a padding may be two pairs, before and after.

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
    kernel_size, stride, padding, dilation : int or three int
        A padding may be three pairs, before and after.

    Attributes
    ----------
    weight : (out_channels, depth, height, width, in_channels / groups)
    bias : (out_channels,) or None
    """

    axes = 3
    op = staticmethod(convolution.conv3d)
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (0, 2, 3, 4, 1)}


class _Transposed(Module):
    """The base of transposed convolutions."""

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
        """Map (n, ..., in_channels) to (n, ..., out_channels), float32."""
        name = type(self).__name__
        node = require_width(name, as_floats(name, x), self.weight.shape[-1])
        y = wrap(self._convolve(node))
        return y if self.bias is None else y + self.bias

    def _convolve(self, x: Node) -> Node:
        return type(self).op(x, self.weight.node, *self._options)


class ConvTranspose1d(_Transposed):
    """Transposed convolution over (n, length, channels); see `ConvTranspose2d`."""

    axes = 1
    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (1, 2, 0)}

    def _convolve(self, x: Node) -> Node:
        options = (value[0] for value in self._options)
        return transposed.conv_transpose1d(x, self.weight.node, *options)


class ConvTranspose2d(_Transposed):
    """Transposed convolution over (n, height, width, channels).

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


class _Pool(Module):
    """A pool over some axes.

    Parameters
    ----------
    kernel_size : int or a sequence
        Size of the window along each axis.
    stride : int, a sequence or None
        None is the size of the window.
    """

    axes: ClassVar[int]
    op: ClassVar[Callable[..., Node]]

    def __init__(
        self, kernel_size: Counts, stride: Counts | None = None, padding: Paddings = 0
    ) -> None:
        self._kernel = for_axes(kernel_size, self.axes)
        self._strides = self._kernel if stride is None else for_axes(stride, self.axes)
        self._paddings = for_axes(padding, self.axes)

    def __call__(self, x: Array) -> Array:
        """Pool windows of (n, ..., channels)."""
        name = type(self).__name__
        node = as_floats(name, x)
        if len(node.spec.shape) != self.axes + 2:
            raise ShapeError(f"{name}: input is {x.shape}, needs {self.axes + 2} axes")
        return wrap(type(self).op(node, self._kernel, self._strides, self._paddings))


class MaxPool1d(_Pool):
    """Largest values of windows over 1 axis of (n, ..., channels)."""

    axes = 1
    op = staticmethod(pooling.max_pool)


class MaxPool2d(_Pool):
    """Largest values of windows over 2 axes of (n, ..., channels)."""

    axes = 2
    op = staticmethod(pooling.max_pool)


class MaxPool3d(_Pool):
    """Largest values of windows over 3 axes of (n, ..., channels)."""

    axes = 3
    op = staticmethod(pooling.max_pool)


class AvgPool1d(_Pool):
    """Means of windows over 1 axis of (n, ..., channels); zeros of the padding count."""

    axes = 1
    op = staticmethod(pooling.avg_pool)


class AvgPool2d(_Pool):
    """Means of windows over 2 axes of (n, ..., channels); zeros of the padding count."""

    axes = 2
    op = staticmethod(pooling.avg_pool)


class AvgPool3d(_Pool):
    """Means of windows over 3 axes of (n, ..., channels); zeros of the padding count."""

    axes = 3
    op = staticmethod(pooling.avg_pool)


UpsampleMode = Literal["nearest", "linear", "cubic", "nearest-exact", "bilinear", "bicubic", "area"]
_MODES: tuple[str, ...] = get_args(UpsampleMode)
_CURVES: dict[str, tuple[resizing.ResizeMode, Callable[[float, int], dict[int, float]]]] = {
    "linear": ("bilinear", resizing.between_two),
    "cubic": ("bicubic", resizing.between_four),
}


def resized(
    x: Array,
    height: int,
    width: int,
    mode: resizing.ResizeMode = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
) -> Array:
    """Resize images (n, h, w, c); see `wgpu_backend.ops.conv.resizing.resize`."""
    node = as_floats("resized", x)
    return wrap(resizing.resize(node, height, width, mode, align_corners, antialias))


class Upsample(Module):
    """A layer that resizes signals, images or volumes by a factor along their axes.

    Parameters
    ----------
    scale_factor : int, float, or a tuple with one for each axis
    mode : str
        ``nearest``, ``linear`` or ``cubic``; for images also the modes of `resized`.
    align_corners : bool
        For linear and cubic: keep the outermost values in their places.
    antialias : bool
        For linear and cubic: filter before making an axis smaller.
    """

    def __init__(
        self,
        scale_factor: float | tuple[float, ...],
        mode: UpsampleMode = "nearest",
        align_corners: bool = False,
        antialias: bool = False,
    ) -> None:
        if mode not in _MODES:
            raise OptionError(f"Upsample: mode is {mode!r}, needs one of {[*_MODES]}")
        if antialias and (align_corners or mode not in _CURVES):
            raise OptionError(
                f"Upsample: antialias with mode {mode!r}, align_corners={align_corners}; needs "
                "linear or cubic, and False"
            )
        self.scale_factor, self.align_corners = scale_factor, align_corners
        self.mode: UpsampleMode = mode
        self.antialias = antialias

    def __call__(self, x: Array) -> Array:
        """Map (n, ..., c) to (n, ... · factor, c), float32."""
        factors = self._factors(x)
        # Whole factors need no sampling positions, and any number of axes can be repeated.
        repeats = self.mode == "nearest" and all(int(f) == f for f in factors)
        if self.mode not in _MODES[:3] or (repeats and len(factors) == 2):
            height, width = (int(n * f) for n, f in zip(x.shape[1:-1], factors, strict=True))
            return resized(x, height, width, cast("Any", self.mode), self.align_corners)
        node = convert(as_floats("Upsample", x), F32)
        for axis, factor in enumerate(factors, 1):
            table = resizing.make_table(self._weights(x.shape[axis], factor))
            node = resizing.resample(node, cast("Any", table), axis=axis)
        return wrap(node)

    def _factors(self, x: Array) -> tuple[float, ...]:
        axes = x.ndim - 2
        given = self.scale_factor
        factors = tuple(given) if isinstance(given, tuple | list) else (given,) * axes
        most = 2 if self.mode not in _MODES[:3] else axes
        if axes < 1 or len(factors) != axes or axes > most:
            raise ShapeError(
                f"Upsample: input is {x.shape}, factors {given}, needs one for each axis"
            )
        return factors

    def _weights(self, have: int, factor: float) -> resizing.Weights:
        """Return the weights of the values along an axis, for each value of the result."""
        want = int(have * factor)
        if want < 1:
            raise ShapeError(f"Upsample: {have} values times {factor}, needs at least one value")
        if self.mode == "nearest":
            grows = want > have
            places = ((i + 0.5) * (have / want) - 0.5 if grows else i * (have / want)
                      for i in range(want))  # fmt: skip
            return [{round(p) if grows else int(p): 1.0} for p in places]
        smooth, between = _CURVES[self.mode]
        if self.antialias:
            return resizing.axis_weights(have, want, smooth, antialias=True)
        step = (have - 1) / max(want - 1, 1) if self.align_corners else 1 / factor
        start = 0.0 if self.align_corners else ((want - 1) * step - have + 1) / 2
        return [between(i * step - start, have) for i in range(want)]


def timestep_embedding(
    t: Array,
    dim: int,
    flip_sin_to_cos: bool = False,
    downscale_freq_shift: float = 1.0,
    scale: float = 1.0,
    max_period: float = 10000.0,
) -> Array:
    """Return times (n,) as vectors (n, dim) of sines and cosines.

    See `wgpu_backend.ops.conv.timesteps.timestep_embedding`.
    """
    node = as_singles("timestep_embedding", t)
    return wrap(
        timesteps.timestep_embedding(
            node, dim, flip_sin_to_cos, downscale_freq_shift, scale, max_period
        )
    )
