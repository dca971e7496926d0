"""The preparation of pictures for vision towers: sizes, tiles, resizing, values and patches.

A picture is (height, width, 3), u8. Results equal those of transformers' image processors to the
last bit. Most of these resize with Pillow. Two exist only for torchvision, whose filters have
weights of 16 bits (`resize_coarsely`).

A grid is (rows, columns).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wgpu_backend.errors import OptionError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.media.pictures import MAX_PIXELS, Picture

Bytes = NDArray[np.uint8]
F32s = NDArray[np.float32]
Value = TypeVar("Value", np.uint8, np.float32)
Filter = Image.Resampling
Size = tuple[int, int]
"""Height and width, or rows and columns."""

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
MOST_UNEVEN = 200
"""The highest ratio of a picture's sides that Qwen's and GLM's processors take."""


# Resizing.


def resize(pixels: Bytes, height: int, width: int, how: Filter = Filter.BICUBIC) -> Bytes:
    """Resize (height, width, 3) with a filter of Pillow; proportions may change."""
    if pixels.shape[:2] == (height, width):
        return np.asarray(pixels)
    if isinstance(pixels, Picture):
        return pixels.rescale(height, width, how)
    return np.asarray(Image.fromarray(pixels).resize((width, height), how))


def resize_coarsely(pixels: Bytes, height: int, width: int, how: Filter = Filter.BILINEAR) -> Bytes:
    """Resize (height, width, 3) as torchvision does: along rows, then columns.

    The weights of its antialiased filters are integers of 16 bits; Pillow's are finer. Values are
    rounded to bytes in between.

    Parameters
    ----------
    how : Filter
        ``BILINEAR``, ``BICUBIC`` or ``LANCZOS``.
    """
    return _scale(_scale(pixels, width, 1, how), height, 0, how)


def _scale(pixels: Bytes, length: int, axis: int, how: Filter) -> Bytes:
    """Resize pixels along an axis."""
    if pixels.shape[axis] == length:
        return pixels
    places, weights = _taps(pixels.shape[axis], length, how)
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


def _taps(length: int, wanted: int, how: Filter) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the source pixels of each result pixel and their weights: (taps, wanted) each."""
    scale = length / wanted
    spread = max(scale, 1.0)
    reach, weigh = _SHAPES[how]
    centres = (np.arange(wanted) + 0.5) * scale
    first = np.maximum((centres - reach * spread + 0.5).astype(np.intp), 0)
    end = np.minimum((centres + reach * spread + 0.5).astype(np.intp), length)
    places = first + np.arange(int((end - first).max()))[:, None]
    made = weigh(np.abs((places - centres + 0.5) / spread)) * (places < end)
    return np.minimum(places, length - 1), made / made.sum(0)


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1 - x, 0.0)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of cubic convolution (Keys 1981, a = -1/2)."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of Lanczos' filter with three lobes (Duchon 1979)."""
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


_SHAPES: dict[Filter, tuple[int, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    Filter.BILINEAR: (1, _triangle),
    Filter.BICUBIC: (2, _cubic),
    Filter.LANCZOS: (3, _lanczos),
}


def crop_centre(picture: Bytes, size: Size) -> Bytes:
    """Crop the centre of a picture, padded with black if it is smaller than `size`."""
    height, width = picture.shape[:2]
    whole = (max(height, size[0]), max(width, size[1]))
    top, left = math.ceil((whole[0] - height) / 2), math.ceil((whole[1] - width) / 2)
    if (top, left) != (0, 0):
        picture = _place(picture, whole, top, left)
    top += (height - size[0]) // 2
    left += (width - size[1]) // 2
    return picture[top : top + size[0], left : left + size[1]]


def pad(picture: Bytes, size: Size, *, centred: bool = False) -> Bytes:
    """Pad with black to `size`: at the right and bottom, or on all sides if `centred`."""
    if picture.shape[:2] == size:
        return picture
    rows, columns = size[0] - picture.shape[0], size[1] - picture.shape[1]
    top, left = (rows // 2, columns // 2) if centred else (0, 0)
    return _place(picture, size, top, left)


def fit_square(picture: Bytes, edge: int, colour: tuple[int, int, int]) -> Bytes:
    """Resize a picture to fit a square, centred on a colour, as Pillow's ``ImageOps.pad`` does.

    Halves are rounded to even.
    """
    height, width = picture.shape[:2]
    size = edge, edge
    if width > height:
        size = max(round(height / width * edge), 1), edge
    elif height > width:
        size = edge, max(round(width / height * edge), 1)
    top, left = (round((edge - side) * 0.5) for side in size)
    return _place(resize(picture, *size), (edge, edge), top, left, colour)


def _place(
    picture: Bytes, size: Size, top: int, left: int, colour: tuple[int, int, int] = (0, 0, 0)
) -> Bytes:
    made = np.full((*size, 3), colour, np.uint8)
    made[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return made


def split_tiles(picture: Bytes, grid: Size) -> list[Bytes]:
    """Split a picture into tiles of equal size, row by row."""
    height, width = picture.shape[0] // grid[0], picture.shape[1] // grid[1]
    return [
        picture[i * height : (i + 1) * height, j * width : (j + 1) * width]
        for i, j in product(range(grid[0]), range(grid[1]))
    ]


# Values.


def normalise(picture: Bytes, mean: Sequence[float], deviation: Sequence[float]) -> F32s:
    """Return ``(x / 255 - mean) / deviation`` with the roundings of the Pillow processors."""
    return _look_up(picture, _table(mean, deviation))


def normalise_patches(patches: Bytes, mean: Sequence[float], deviation: Sequence[float]) -> F32s:
    """Return `normalise` of patches with colours first: (…, 3 · side²).

    Bytes are quicker to split into patches than floats.
    """
    shaped = patches.reshape(*patches.shape[:-1], 3, -1).swapaxes(-1, -2)
    made = np.empty((*patches.shape[:-1], 3, patches.shape[-1] // 3), np.float32)
    _look_up(shaped, _table(mean, deviation), made.swapaxes(-1, -2))
    return made.reshape(patches.shape)


def _table(mean: Sequence[float], deviation: Sequence[float]) -> F32s:
    """Return the value of each byte in each colour: (256, 3).

    A byte has 256 values, so that a table of all is quicker than arithmetic on each pixel.
    """
    every = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
    return (scale_unit(every) - np.array(mean, np.float32)) / np.array(deviation, np.float32)


def _look_up(colours: Bytes, table: F32s, into: F32s | None = None) -> F32s:
    """Return the value of each byte of (…, 3)."""
    made = np.empty(colours.shape, np.float32) if into is None else into
    for colour in range(3):
        made[..., colour] = table[:, colour].take(colours[..., colour])
    return made


def scale_unit(picture: Bytes) -> F32s:
    """Return values from 0 to 1: (height, width, 3)."""
    # In f64 first: 1/255 in f32 would change the last bit.
    return (picture.astype(np.float64) * (1 / 255)).astype(np.float32)


def normalise_fused(picture: Bytes, mean: Sequence[float], deviation: Sequence[float]) -> F32s:
    """Return `normalise` with torchvision's roundings: ``(x - 255 mean) / (255 deviation)``."""
    by: F32s = np.array([mean, deviation], np.float32) * np.float32(255)
    return (picture.astype(np.float32) - by[0]) / by[1]


def normalise_half(picture: Bytes, mean: Sequence[float], deviation: Sequence[float]) -> F32s:
    """Return `normalise` with each step rounded to bf16: Llama 4."""
    scaled = _round_bf16(picture.astype(np.float32) * np.float32(1 / 255))
    less = _round_bf16(scaled - _round_bf16(np.array(mean, np.float32)))
    return _round_bf16(less / _round_bf16(np.array(deviation, np.float32)))


def _round_bf16(x: F32s) -> F32s:
    """Round finite values to the nearest bf16, ties to even."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def colour_statistics(config: Config) -> tuple[list[float], list[float]]:
    """Return mean and deviation of the colours, from ``vision.image_mean`` and ``image_std``."""
    return config.floats("vision.image_mean"), config.floats("vision.image_std")


def split_patches(
    values: NDArray[Value], side: int, *, merge: int = 1, colours_first: bool = True
) -> NDArray[Value]:
    """Split a picture into patches, in squares of ``merge x merge`` patches, row by row.

    Parameters
    ----------
    values : (height, width, 3)
        Height and width are multiples of ``side * merge``.
    side : int
        Pixels along the side of a patch.
    merge : int
        Patches along the side of a square; the result lists patches square by square.
    colours_first : bool
        Whether a patch has (colours, rows, columns), as a convolution's kernel does, or (rows,
        columns, colours).

    Returns
    -------
    (height / side / merge, width / side / merge, merge², 3 · side²)
    """
    height, width, colours = values.shape
    rows, columns = height // (side * merge), width // (side * merge)
    parts = values.reshape(rows, merge, side, columns, merge, side, colours)
    ordered = parts.transpose((0, 3, 1, 4, 6, 2, 5) if colours_first else (0, 3, 1, 4, 2, 5, 6))
    return np.ascontiguousarray(ordered).reshape(rows, columns, merge * merge, -1)


def list_places(rows: int, columns: int, square: int) -> NDArray[np.int32]:
    """Return the rows of all patches, square by square, and their columns: (2, patches).

    Parameters
    ----------
    rows, columns : int
        Squares of the picture.
    square : int
        Patches along the side of a square.
    """
    whole = np.indices((rows * square, columns * square), np.int32)
    squares = whole.reshape(2, rows, square, columns, square).swapaxes(2, 3)
    return np.ascontiguousarray(squares).reshape(2, -1)


# Sizes.


def fit_shortest(size: Size, edge: int) -> Size:
    """Return `size` scaled so that its shorter side is `edge`, as CLIP does.

    Raises
    ------
    OptionError
        The result has more than `MAX_PIXELS`.
    """
    height, width = size
    longest = MAX_PIXELS // edge
    if edge * max(size) / min(size) >= longest + 1:
        raise OptionError(
            f"picture: {width} x {height} pixels, this model needs a ratio of sides of at most "
            f"{longest // edge}; crop it"
        )
    if width <= height:
        return int(edge * height / width), edge
    return edge, int(edge * width / height)


def fit_pixels(size: Size, multiple: int, fewest: int, most: int) -> Size:
    """Return `size` in multiples of `multiple`, with `fewest` to `most` pixels, as Qwen-VL does.

    Halves are rounded to even.

    Raises
    ------
    OptionError
        One side is more than `MOST_UNEVEN` times the other.
    """
    require_even(size)
    return _bounded(size, size, multiple, fewest, most, least=0)


def fit_frames(size: Size, multiple: int, fewest: int, most: int, frames: int = 2) -> Size:
    """Return `fit_pixels`, but with the pixels of all frames counted, as GLM-4V does.

    Qwen3-VL does the same with videos. Limits are compared with the frames rounded to pairs.

    Raises
    ------
    OptionError
        One side is more than `MOST_UNEVEN` times the other.
    """
    if min(size) < multiple:
        scale = max(multiple / size[0], multiple / size[1])
        size = int(size[0] * scale), int(size[1] * scale)
    require_even(size)
    pairs = 2 * round(frames / 2)
    return _bounded(size, (frames * size[0], size[1]), multiple, fewest, most, pairs, least=0)


def is_large(size: Size, multiple: int, least: int, most: float) -> bool:
    """Return whether a size, rounded to multiples, has more than `most` pixels, as LFM2-VL does.

    Sides are rounded to at least `least`.
    """
    height, width = (max(least, round(side / multiple) * multiple) for side in size)
    return height * width > most


def fit_tokens(size: Size, multiple: int, fewest: int, most: int) -> Size:
    """Return `size` rounded to `fewest` to `most` squares of side `multiple`, as LFM2-VL does."""
    square = multiple**2
    return _bounded(size, size, multiple, fewest * square, most * square, least=multiple)


def _bounded(
    size: Size, area: Size, multiple: int, fewest: int, most: int, frames: int = 1, *, least: int
) -> Size:
    """Return a size rounded to multiples, and scaled if its pixels are out of bounds.

    The scale is computed from the product of `area`. Rounded sides are at least `least`.
    """
    # The published processors also use Python's round, which takes halves to even.
    near = [max(least, round(side / multiple) * multiple) for side in size]
    pixels = area[0] * area[1]
    if frames * near[0] * near[1] > most:
        scale = math.sqrt(pixels / most)
        near = [max(multiple, math.floor(side / scale / multiple) * multiple) for side in size]
    elif frames * near[0] * near[1] < fewest:
        scale = math.sqrt(fewest / pixels)
        near = [math.ceil(side * scale / multiple) * multiple for side in size]
    return near[0], near[1]


def require_even(size: Size) -> None:
    """Raise if a picture is too long and narrow.

    Raises
    ------
    OptionError
        One side is more than `MOST_UNEVEN` times the other.
    """
    if max(size) / min(size) > MOST_UNEVEN:
        raise OptionError(
            f"picture: {size[1]} x {size[0]} pixels, this model needs a ratio of sides of at most "
            f"{MOST_UNEVEN}; crop it"
        )


def fit_patches(size: Size, longest: int, multiple: int) -> Size:
    """Return `size`, reduced to sides of `longest` and rounded up to multiples, as in Pixtral.

    Raises
    ------
    OptionError
        A side would have no pixel; the published processor fails on it, too.
    """
    ratio = max(size[0] / longest, size[1] / longest)
    if ratio > 1:
        if min(size) < ratio:
            raise OptionError(
                f"picture: {size[1]} x {size[0]} pixels, this model needs a ratio of sides of at "
                f"most {longest}, its longest side; crop it"
            )
        size = math.floor(size[0] / ratio), math.floor(size[1] / ratio)
    height, width = (((side - 1) // multiple + 1) * multiple for side in size)
    return height, width


def fit_budget(size: Size, patch: int, pooled: int, most: int) -> Size:
    """Return the largest size with at most `most` tokens of ``pooled x pooled`` patches."""
    side = patch * pooled
    pixels = most * pooled**2 * patch**2
    scale = math.sqrt(pixels / (size[0] * size[1]))
    height, width = (math.floor(scale * length / side) * side for length in size)
    longest = most * side
    if height == 0:
        height, width = side, min(size[1] // size[0] * side, longest)
    elif width == 0:
        height, width = min(size[0] // size[1] * side, longest), side
    return height, width


def fit_proportions(size: Size, step: int, most: int) -> Size:
    """Return rows and columns of squares, at most `most`, closest to a picture's proportions.

    Parameters
    ----------
    size : (int, int)
        Height and width in pixels.
    step : int
        Pixels along the side of a square.
    """
    rows, columns = (side / step for side in size)
    if rows * columns > most:
        rows = (most / (columns / rows)) ** 0.5
        columns = rows * (size[1] / size[0])
    found = [
        (r, c)
        for r, c in product(
            (math.floor(rows), math.ceil(rows)), (math.floor(columns), math.ceil(columns))
        )
        if r >= 1 and c >= 1 and r * c <= most
    ]
    if not found:
        return max(1, round(rows)), max(1, round(columns))
    # Of equally close ones the largest, as in llama.cpp; transformers' order is that of a set.
    return min(found, key=lambda grid: (abs(grid[0] / grid[1] - size[0] / size[1]), -grid[0]))


def fit_longest(size: Size, edge: int, most: int = 4096) -> Size:
    """Return `size` scaled so that its longer side is `edge`, as Idefics 3 does.

    The shorter side is rounded up to an even number, and at least 1.
    """
    height, width = size
    ratio = width / height
    if width >= height:
        width, height = edge, int(edge / ratio)
        height += height % 2
    else:
        height, width = edge, int(edge * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > most:
        width, height = most, int(most / ratio)
    elif height > width and height > most:
        height, width = most, int(most * ratio)
    return max(height, 1), max(width, 1)


def fit_tiles(size: Size, tile: int) -> Size:
    """Return `size` rounded up to whole tiles, the longer side first, as Idefics 3 does."""
    height, width = size
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    return height, width


# Grids of tiles.


def find_grid(size: Size, tile: Size, fewest: int, most: int) -> Size:
    """Return the grid of tiles with the proportions nearest to the picture's, as InternVL does.

    LFM2-VL does the same. In a tie the larger grid is taken if the picture has more than half of
    that grid's pixels.
    """
    height, width = size
    best, found = float("inf"), (1, 1)
    for rows, columns in _grids(fewest, most):
        apart = abs(width / height - columns / rows)
        if apart < best:
            best, found = apart, (rows, columns)
        elif apart == best and width * height > 0.5 * tile[0] * tile[1] * rows * columns:
            found = rows, columns
    return found


@cache
def _grids(fewest: int, most: int) -> list[Size]:
    """Return the grids of `fewest` to `most` tiles, in order of tiles, then of columns."""
    sides = range(1, most + 1)
    grids = [(rows, columns) for columns in sides for rows in sides]
    return sorted((g for g in grids if fewest <= g[0] * g[1] <= most), key=lambda g: g[0] * g[1])


def find_canvas(scales: F32s | NDArray[np.float64], grids: Sequence[Size]) -> Size:
    """Return the grid that enlarges a picture least, or else reduces it least.

    In a tie it is the smaller grid.

    Parameters
    ----------
    scales : (grids,), f32 or f64
        By how much the picture may be enlarged to fit each grid.
    grids : sequence of (int, int)
    """
    larger = scales[scales >= 1]
    chosen = larger.min() if larger.size else scales.max()
    fitting = [grid for grid, scale in zip(grids, scales, strict=True) if scale == chosen]
    return min(fitting, key=lambda grid: grid[0] * grid[1])


@cache
def list_llama4_grids(most: int) -> tuple[Size, ...]:
    """Return the grids of at most `most` tiles in the order of Llama 4's processor."""
    by_ratio: dict[float, list[Size]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                by_ratio.setdefault(rows / (count // rows), []).append((rows, count // rows))
    return tuple(grid for grids in by_ratio.values() for grid in grids)


def fit_llama4(size: Size, tile: int, most: int) -> tuple[Size, Size]:
    """Return the grid of tiles that Llama 4 chooses, and the size of the picture on it."""
    grids = list_llama4_grids(most)
    sides = np.array(grids, np.float32) * np.float32(tile)
    scales = (sides / np.array(size, np.float32)).min(1)
    grid = find_canvas(scales, grids)
    canvas = grid[0] * tile, grid[1] * tile
    # The processor computes in f32 for a side that the canvas limits, else in f64.
    wanted = [max(side, tile) for side in size]
    by = [
        np.float32(bound) / np.float32(side) if bound < want else want / side
        for side, want, bound in zip(size, wanted, canvas, strict=True)
    ]
    limits = [min(want, bound) for want, bound in zip(wanted, canvas, strict=True)]
    if by[1] < by[0]:
        made = min(math.floor(size[0] * by[1]), limits[0]), limits[1]
    else:
        made = limits[0], min(math.floor(size[1] * by[0]), limits[1])
    return grid, (max(made[0], 1), max(made[1], 1))


def list_mllama_grids(most: int) -> list[Size]:
    """Return the grids of at most `most` tiles in the order of Llama 3.2 Vision's ids."""
    sides = range(1, most + 1)
    return [(rows, columns) for rows in sides for columns in sides if rows * columns <= most]


def fit_mllama(size: Size, tile: int, most: int) -> tuple[Size, Size]:
    """Return the grid of tiles that Llama 3.2 Vision chooses, and the picture's size on it."""
    grids = list_mllama_grids(most)
    scales = (np.array(grids, np.float64) * tile / np.array(size, np.float64)).min(1)
    grid = find_canvas(scales, grids)
    limits = [min(max(side, tile), g * tile) for side, g in zip(size, grid, strict=True)]
    down, across = limits[0] / size[0], limits[1] / size[1]
    if across < down:
        return grid, (min(math.floor(size[0] * across) or 1, limits[0]), limits[1])
    return grid, (limits[0], min(math.floor(size[1] * down) or 1, limits[1]))


def find_pinpoint(size: Size, sizes: Sequence[Size]) -> Size:
    """Return the candidate that keeps most pixels and wastes fewest, as LLaVA 1.6 does."""
    height, width = size
    best, kept_most, least = sizes[0], 0, float("inf")
    for rows, columns in sizes:
        scale = min(columns / width, rows / height)
        scaled = int(width * scale) * int(height * scale)
        kept = min(scaled, width * height)
        wasted = rows * columns - kept
        if kept > kept_most or (kept == kept_most and wasted < least):
            best, kept_most, least = (rows, columns), kept, wasted
    return best


def fit_inside(size: Size, canvas: Size) -> Size:
    """Return `size` scaled to fit a canvas, rounded up, as LLaVA 1.6 does."""
    down, across = canvas[0] / size[0], canvas[1] / size[1]
    if across < down:
        return min(math.ceil(size[0] * across), canvas[0]), canvas[1]
    return canvas[0], min(math.ceil(size[1] * down), canvas[1])
