"""Preparation of pictures on the host, with the numbers of the reference processors.

Published processors resize bytes with Pillow, then scale and normalise in f32. The functions follow
transformers' Pillow back end to the last bit: another order of roundings would change pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wgpu_backend.files.gguf.config import Config

Bytes = NDArray[np.uint8]
F32s = NDArray[np.float32]
Filter = Image.Resampling
_BYTE = 1 / 255


def resize(pixels: Bytes, height: int, width: int, how: Filter = Filter.BICUBIC) -> Bytes:
    """Resize (height, width, 3) with a filter of Pillow, without regard to proportions."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), how))


def normalise(pixels: Bytes, mean: Sequence[float], deviation: Sequence[float]) -> F32s:
    """Scale bytes to 0 to 1, subtract the mean of each colour and divide by its deviation."""
    # In f64 until the scaled value is rounded, as published processors compute it.
    scaled = (pixels.astype(np.float64) * _BYTE).astype(np.float32)
    return (scaled - np.array(mean, np.float32)) / np.array(deviation, np.float32)


def colour_statistics(config: Config) -> tuple[list[float], list[float]]:
    """Return mean and deviation of the colours, from ``vision.image_mean`` and ``image_std``."""
    return config.floats("vision.image_mean"), config.floats("vision.image_std")


def split_patches(values: F32s, side: int, *, merge: int = 1) -> F32s:
    """Split a picture into square patches, ordered by rows; each has colours, then rows.

    Parameters
    ----------
    values : (height, width, 3), f32
        Height and width are multiples of ``side * merge``.
    side : int
        Pixels along the side of a patch.
    merge : int
        Patches along the side of a square, whose patches follow each other.

    Returns
    -------
    (height / side / merge, width / side / merge, merge², 3 · side²), f32
    """
    height, width, colours = values.shape
    rows, columns = height // (side * merge), width // (side * merge)
    parts = values.reshape(rows, merge, side, columns, merge, side, colours)
    ordered = parts.transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(ordered).reshape(rows, columns, merge * merge, -1)
