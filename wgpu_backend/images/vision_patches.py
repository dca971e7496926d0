"""The input of Qwen's vision tower: patches of an image, in the order in which they are merged.

The reference resizes bytes with a bicubic filter whose weights are 16-bit integers, columns before
rows, and rounds to bytes in between. Pillow's weights are finer, which changes some bytes by one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.nn.vision.processing import CLIP_DEVIATION, CLIP_MEAN, Filter, resize_coarsely

_MEAN, _DEVIATION = list(CLIP_MEAN), list(CLIP_DEVIATION)


def vision_patches(
    picture: Image.Image, settings: Settings
) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
    """Resize an image with a bicubic filter and split it into patches.

    Parameters
    ----------
    picture : Image
        In RGB.
    settings : Settings
        Settings of the image processor: preprocessor_config.json, or its section of
        processor_config.json.

    Returns
    -------
    patches : (patches, channels · frames · side · side), f32
        Blocks of 2 x 2 patches in sequence; the image is repeated as often as a patch has frames.
    grid : (int, int, int)
        Patches in time, rows, columns.
    """
    side = settings.uint("patch_size", default=14)
    merge = settings.uint("merge_size", default=2)
    frames = settings.uint("temporal_patch_size", default=2)
    width, height = _size(picture.size, side * merge, *_bounds(settings))
    pixels = resize_coarsely(np.asarray(picture.convert("RGB")), height, width, Filter.BICUBIC)
    mean, deviation = (
        np.array(settings.numbers(name, default=default), np.float32)
        for name, default in (("image_mean", _MEAN), ("image_std", _DEVIATION))
    )
    values = (pixels.astype(np.float32) / np.float32(255) - mean) / deviation
    rows, columns = height // side, width // side
    blocks = values.reshape(rows // merge, merge, side, columns // merge, merge, side, 3)
    ordered = blocks.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
    repeated = np.repeat(ordered, frames, axis=5)
    return repeated.reshape(rows * columns, -1), (1, rows, columns)


def _bounds(settings: Settings) -> tuple[int, int]:
    """Return the fewest and most pixels of a resized image."""
    size = settings.section("size")
    fewest = size.uint("shortest_edge", default=settings.uint("min_pixels", default=56 * 56))
    most = size.uint("longest_edge", default=settings.uint("max_pixels", default=28 * 28 * 1280))
    return fewest, most


def _size(size: tuple[int, int], multiple: int, fewest: int, most: int) -> tuple[int, int]:
    """Return the nearest size in multiples of a patch, with pixels within bounds."""
    pixels = size[0] * size[1]
    # A side of 0 makes 0 pixels, which the second branch enlarges.
    near = [round(side / multiple) * multiple for side in size]
    if near[0] * near[1] > most:
        scale = math.sqrt(most / pixels)
        near = [math.floor(side * scale / multiple) * multiple for side in size]
    elif near[0] * near[1] < fewest:
        scale = math.sqrt(fewest / pixels)
        near = [math.ceil(side * scale / multiple) * multiple for side in size]
    return max(near[0], multiple), max(near[1], multiple)
