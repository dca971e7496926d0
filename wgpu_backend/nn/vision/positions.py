"""The resizing of position embeddings to the patches of a picture.

Resizing is linear along each axis: two small matrices of weights, which the host computes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ml.tensor import Tensor

F32s = NDArray[np.float32]


def resize_table(table: Tensor, by_row: Tensor, by_column: Tensor, square: int = 1) -> Tensor:
    """Resize a table of position embeddings to a picture's patches.

    Parameters
    ----------
    table : (height, side, width)
    by_row, by_column : (rows, height) and (columns, side), f32
        Weights of the table's rows for each row of patches, and of its columns for each column.
    square : int
        Patches along the side of a square; the result lists patches square by square.

    Returns
    -------
    (rows · columns, width), f32
    """
    height, side, width = table.shape
    rows, columns = by_row.shape[0], by_column.shape[0]
    down = by_row.matmul(table.reshape(height, side * width)).reshape(rows, side, width)
    lines = down.permute(1, 0, 2).contiguous().reshape(side, rows * width)
    whole = by_column.matmul(lines).reshape(columns, rows, width).permute(1, 0, 2)
    if square == 1:
        return whole.contiguous().reshape(rows * columns, width)
    shape = (rows // square, square, columns // square, square, width)
    squares = whole.contiguous().reshape(*shape).permute(0, 2, 1, 3, 4)
    return squares.contiguous().reshape(rows * columns, width)


def triangle_weights(side: int, count: int) -> F32s:
    """Return weights of linear interpolation with antialiasing: (count, side).

    They are those of PyTorch's ``interpolate`` without aligned corners, in f32.
    """
    return _smooth_weights(side, count, lambda x: np.maximum(1 - x, np.float32(0)))


def smooth_cubic_weights(side: int, count: int) -> F32s:
    """Return weights of cubic convolution with antialiasing: (count, side).

    They are those of PyTorch's ``interpolate`` without aligned corners, in f32: Keys 1981 with a =
    -1/2, unlike those without antialiasing.
    """

    def weigh(x: F32s) -> F32s:
        near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
        return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(np.float32)

    return _smooth_weights(side, count, weigh)


def _smooth_weights(side: int, count: int, weigh: Callable[[F32s], F32s]) -> F32s:
    """Return normalised weights by distances, which are in units of the wider spacing."""
    scale = np.float32(side) / np.float32(count)
    centres = (np.arange(count, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    apart = np.abs(np.arange(side, dtype=np.float32) - centres[:, None])
    weights = weigh((apart / max(scale, np.float32(1))).astype(np.float32))
    return weights / weights.sum(1, keepdims=True)


def linear_weights(side: int, count: int) -> F32s:
    """Return weights of linear interpolation without antialiasing: (count, side).

    They are those of PyTorch's ``interpolate`` without aligned corners, in f32. Places outside the
    table have the value at its border.
    """
    scale = np.float32(side) / np.float32(count)
    places = (np.arange(count, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    places = np.clip(places, 0, side - 1)
    apart = np.abs(np.arange(side, dtype=np.float32) - places[:, None])
    return np.maximum(1 - apart, np.float32(0))


def fading_weights(side: int, count: int) -> F32s:
    """Return weights of linear interpolation without antialiasing: (count, side).

    They are those of PyTorch's ``grid_sample`` without aligned corners, in f32. Places outside the
    table fade to 0.
    """
    scale = np.float32(side) / np.float32(count)
    places = (np.arange(count, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    apart = np.abs(np.arange(side, dtype=np.float32) - places[:, None])
    return np.maximum(1 - apart, np.float32(0))


def cubic_weights(side: int, count: int) -> F32s:
    """Return weights of cubic convolution without antialiasing: (count, side).

    They are those of PyTorch's ``grid_sample`` without aligned corners: Keys 1981 with a = -3/4.
    Places outside the table have the value at its border.
    """
    places = (np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(count)
    # In the steps of grid_sample, whose places are from -1 to 1, so that roundings are equal.
    places = ((places * 2 - 1 + 1) * np.float32(side) - 1) / 2
    first = np.floor(places)
    weights = np.zeros((count, side), np.float32)
    for tap in range(-1, 3):
        x = np.abs(places - first - np.float32(tap))
        near = (1.25 * x - 2.25) * x * x + 1
        far = ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0
        columns = np.clip(first.astype(np.int64) + tap, 0, side - 1)
        values = np.where(x < 1, near, far).astype(np.float32)
        np.add.at(weights, (np.arange(count), columns), values)
    return weights


def aligned_weights(side: int, count: int) -> F32s:
    """Return weights of linear interpolation with aligned corners: (count, side)."""
    places = np.linspace(0, side - 1, count, dtype=np.float32)
    apart = np.abs(np.arange(side, dtype=np.float32) - places[:, None])
    return np.maximum(1 - apart, np.float32(0))
