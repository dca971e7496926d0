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

Bytes = NDArray[np.uint8]
# Mean and deviation of CLIP's training images.
_MEAN = [0.48145466, 0.4578275, 0.40821073]
_DEVIATION = [0.26862954, 0.26130258, 0.27577711]


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
    pixels = _scale(_scale(np.asarray(picture.convert("RGB")), width, 1), height, 0)
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


def _scale(pixels: Bytes, length: int, axis: int) -> Bytes:
    """Resize pixels along an axis."""
    if pixels.shape[axis] == length:
        return pixels
    places, weights = _taps(pixels.shape[axis], length)
    # The most fractional bits with which the largest weight still fits 16 bits.
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * 2.0 ** (bits + 1)) < 1 << 15:
        bits += 1
    whole = np.trunc(weights * 2.0**bits + np.copysign(0.5, weights)).astype(np.int32)
    rows = np.moveaxis(pixels, axis, 0)
    # Half of a unit, so that the shift rounds.
    sums = np.full((length, *rows.shape[1:]), 1 << (bits - 1), np.int32)
    for place, weight in zip(places, whole, strict=True):
        sums += rows[place].astype(np.int32) * weight.reshape(-1, 1, 1)
    return np.moveaxis(np.clip(sums >> bits, 0, 255).astype(np.uint8), 0, axis)


def _taps(length: int, wanted: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return source pixels and weights, (taps, wanted), of each pixel (Keys 1981, a = -1/2)."""
    scale = length / wanted
    spread = max(scale, 1.0)
    centres = (np.arange(wanted) + 0.5) * scale
    first = np.maximum((centres - 2 * spread + 0.5).astype(np.intp), 0)
    end = np.minimum((centres + 2 * spread + 0.5).astype(np.intp), length)
    places = first + np.arange(int((end - first).max()))[:, None]
    x = np.abs((places - centres + 0.5) / spread)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    made = np.where(x < 1, near, np.where(x < 2, far, 0.0)) * (places < end)
    return np.minimum(places, length - 1), made / made.sum(0)


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
