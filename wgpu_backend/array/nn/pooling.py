"""Windows of values as one: their largest, or their mean; channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from wgpu_backend.array.core import wrap
from wgpu_backend.array.nn.calls import as_floats
from wgpu_backend.array.nn.convolution import Counts, Paddings, for_axes
from wgpu_backend.array.nn.module import Module
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.conv import pooling

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


class _Pool(Module):
    """A pool over some axes.

    Parameters
    ----------
    kernel_size : int or a sequence
        Sides of the window.
    stride : int, a sequence or None
        None is as far as the window is long.
    padding : int or a sequence
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
        """(n, ..., channels) to windows in place of values."""
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
    """Means of windows, zeros of the padding counted, over 1 axis of (n, ..., channels)."""

    axes = 1
    op = staticmethod(pooling.avg_pool)


class AvgPool2d(_Pool):
    """Means of windows, zeros of the padding counted, over 2 axes of (n, ..., channels)."""

    axes = 2
    op = staticmethod(pooling.avg_pool)


class AvgPool3d(_Pool):
    """Means of windows, zeros of the padding counted, over 3 axes of (n, ..., channels)."""

    axes = 3
    op = staticmethod(pooling.avg_pool)
