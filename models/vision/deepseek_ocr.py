"""DeepSeek-OCR's tower: Wei et al. 2025, "DeepSeek-OCR: Contexts Optical Compression", §3.2.

DeepEncoder is SAM's encoder of pictures (Kirillov et al. 2023, "Segment Anything", §3), whose map
convolutions reduce to a 16th of its patches, and CLIP's layers over that map. Both results are
joined and projected. Most of SAM's layers attend within windows, some to the whole map (Li et al.
2022, "Exploring Plain Vision Transformer Backbones", §3), with relative positions of rows and of
columns (Li et al. 2022, "MViTv2", §4.1).

The whole picture is one view. That of a large picture follows smaller views, its tiles. A learned
row ends each line, and another one the picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, attend, count_rows
from wgpu_backend.nn.vision.positions import (
    linear_weights,
    resize_table,
    smooth_cubic_weights,
)
from wgpu_backend.nn.vision.processing import (
    find_grid,
    fit_square,
    normalise,
    resize,
    split_patches,
    split_tiles,
)

# The published code has these as constants.
SAM_EPS = 1e-6
CLIP_EPS = 1e-5
GLOBAL_LAYERS = [2, 5, 8, 11]
TILE = 640
GREY = (127, 127, 127)
REDUCTION = 4
"""Patches along the side of a square that becomes one row."""


class SamLayer(nn.Module):
    """A layer of SAM's encoder.

    Parameters
    ----------
    width, heads, inner : int
    window : int
        Patches along the side of a window; 0 for attention to the whole view.
    """

    norm1: nn.LayerNorm
    qkv: nn.Linear = nn.weight("attn.qkv", "three_widths", "width")
    by_row: Tensor = nn.weight("attn.pos_h.weight")
    by_column: Tensor = nn.weight("attn.pos_w.weight")
    out: nn.Linear = nn.weight("attn.out", "width", "width")
    norm2: nn.LayerNorm
    up: nn.Linear = nn.weight("mlp.lin1", "inner", "width")
    down: nn.Linear = nn.weight("mlp.lin2", "width", "inner")

    def __init__(self, width: int, heads: int, inner: int, window: int) -> None:
        self.width, self.three_widths, self.inner = width, 3 * width, inner
        self.heads, self.window = heads, window
        self.norm1 = nn.weight("pre_ln", "width", kind=nn.LayerNorm(SAM_EPS), needed=True)
        self.norm2 = nn.weight("post_ln", "width", kind=nn.LayerNorm(SAM_EPS), needed=True)

    def __call__(self, context: Context, x: Tensor, side: int) -> Tensor:
        """Map the patches of views of `side` x `side`, (views · side², width), to the same."""
        y = self.norm1(x)
        if self.window:
            into, back = split_into_windows(len(y) // side**2, side, self.window)
            # Windows at the edges have zeros, which are attended to.
            zeros = context.from_numpy(np.zeros((1, self.width), np.float32))
            y = y.concat(zeros, axis=0).rows(context.from_numpy(into))
            y = self.attend(context, y, self.window).rows(context.from_numpy(back))
        else:
            y = self.attend(context, y, side)
        x = x.add(self.out(y))
        return x.add(self.down(self.up(self.norm2(x)).gelu_erf()))

    def attend(self, context: Context, x: Tensor, side: int) -> Tensor:
        """Attend within squares of `side` x `side` patches: (squares · side², width) to the same.

        A score has the products of the query with a learned vector of the distance in rows, and
        with one of that in columns. They are further values of the query, which the key's row and
        column select by a 1 among zeros: no array of all scores is needed.
        """
        heads, head = self.heads, self.width // self.heads
        count = side**2
        squares = len(x) // count
        parts = self.qkv(x)
        q, k, v = (
            parts.slice(-1, i * self.width, (i + 1) * self.width)
            .contiguous()
            .reshape(len(x), heads, head)
            for i in range(3)
        )
        shaped = q.reshape(squares, side, side, heads, head)
        by_row = self._by_distance(context, shaped.permute(1, 0, 2, 3, 4), self.by_row)
        by_column = self._by_distance(context, shaped.permute(2, 0, 1, 3, 4), self.by_column)
        added = [
            each.contiguous().reshape(len(x), heads, side)
            for each in (by_row.permute(1, 0, 2, 3, 4), by_column.permute(1, 2, 0, 3, 4))
        ]
        place = np.arange(count)
        ones = np.zeros((count, 2 * side), np.float32)
        ones[place, place // side] = ones[place, side + place % side] = 1
        chosen = context.from_numpy(ones.reshape(count, 1, 2 * side)).tile(squares, heads, 1)
        query = q.scale(factor=head**-0.5).concat(added[0], axis=2).concat(added[1], axis=2)
        return attend(query, k.concat(chosen, axis=2), v, scale=1.0, runs=[count] * squares)

    @staticmethod
    def _by_distance(context: Context, q: Tensor, table: Tensor) -> Tensor:
        """Multiply queries by the vectors of their distances to each line.

        Parameters
        ----------
        q : (side, …, head)
            Queries, by their own line first.
        table : (distances, head)
            Vectors of distances, the most negative first; resized if there are not ``2 side - 1``.

        Returns
        -------
        (side, …, side)
        """
        side, *between, head = q.shape
        wanted = 2 * side - 1
        if table.shape[0] != wanted:
            weights = context.from_numpy(linear_weights(table.shape[0], wanted))
            table = weights.matmul(table)
        lines = np.arange(side, dtype=np.int32)
        apart = lines[:, None] - lines + np.int32(side - 1)
        vectors = table.rows(context.from_numpy(apart.ravel())).reshape(side, side, head)
        rows = q.contiguous().reshape(side, -1, head)
        return rows.matmul(vectors.permute(0, 2, 1)).reshape(side, *between, side)


def split_into_windows(
    views: int, side: int, window: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the patches of all windows, and the place of each patch in the windows.

    Parameters
    ----------
    views, side, window : int
        Views, patches along the side of each, and along that of a window.

    Returns
    -------
    into : (views · windows · window²,), i32
        Patches, window by window. Places beyond the edge have the number after the last patch.
    back : (views · side²,), i32
    """
    across = -(-side // window)
    numbers = np.full((views, across * window, across * window), views * side**2, np.int32)
    numbers[:, :side, :side] = np.arange(views * side**2).reshape(views, side, side)
    into = numbers.reshape(views, across, window, across, window).swapaxes(2, 3).ravel()
    places = np.flatnonzero(into < views * side**2)
    back = np.empty(views * side**2, np.int32)
    back[into[places]] = places
    return into, back


class Sam(nn.Module):
    """SAM's encoder, and the convolutions that reduce its map."""

    patches: nn.Linear = nn.weight("patch_embd", "width", "patch_values")
    positions: Tensor = nn.weight("pos_embd.weight")
    narrow: Tensor = nn.weight("neck.0.weight")
    narrow_norm: nn.LayerNorm
    mix: Tensor = nn.weight("neck.2.weight")
    mix_norm: nn.LayerNorm
    reduce1: Tensor = nn.weight("net_2.weight")
    reduce2: Tensor = nn.weight("net_3.weight")
    layers: list[SamLayer]

    def __init__(self, width: int, patch: int) -> None:
        self.width, self.patch_values = width, 3 * patch**2
        self.narrow_norm = nn.weight("neck.1", kind=nn.LayerNorm(SAM_EPS), needed=True)
        self.mix_norm = nn.weight("neck.3", kind=nn.LayerNorm(SAM_EPS), needed=True)

    @property
    def base(self) -> int:
        """Return the patches along the side of the table of positions."""
        return math.isqrt(self.positions.size // self.width)

    def __call__(self, context: Context, patches: Tensor, side: int) -> Tensor:
        """Return the reduced map of views: (views, side / 4, side / 4, channels)."""
        table = self.positions.reshape(self.base, self.base, self.width)
        places = resize_square(context, table, side)
        x = self.patches(patches).reshape(-1, side**2, self.width).add(places)
        x = x.contiguous().reshape(-1, self.width)
        for layer in self.layers:
            x = layer(context, x, side)
        outputs = self.narrow.shape[0]
        x = self.narrow_norm(self.narrow.reshape(outputs, self.width).linear(x, None))
        x = self.mix_norm(_convolve(x.reshape(-1, side, side, outputs), self.mix))
        return _convolve(_convolve(x, self.reduce1, 2), self.reduce2, 2)


def _convolve(x: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    return x.conv2d(kernel.permute(0, 2, 3, 1), (stride, stride), (1, 1))


def resize_square(context: Context, table: Tensor, side: int) -> Tensor:
    """Return the positions of `side` x `side` patches: (base, base, width) to (side², width)."""
    base, _, width = table.shape
    if base == side:
        return table.reshape(side**2, width)
    weights = context.from_numpy(smooth_cubic_weights(base, side))
    return resize_table(table, weights, weights)


@projector("deepseekocr")
class DeepSeekOcrVision(Tower):
    """SAM's encoder, CLIP's layers over its map, and a matrix.

    Attributes
    ----------
    base, tile, patch : int
        Pixels along the side of the view of a whole picture, of a tile, and of a patch.
    fewest, most : int
        Tiles of a picture that is larger than one; without tiles if `most` is 0.
    """

    placeholder = "<image>"

    class_row: Tensor = nn.weight("v.class_embd")
    positions: Tensor = nn.weight("v.position_embd.weight")
    pre_norm: nn.LayerNorm
    projection: nn.Linear = nn.weight("mm.model.fc", "cols", "joined")
    newline: Tensor = nn.weight("v.image_newline")
    separator: Tensor = nn.weight("v.view_seperator")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        # The key of the feed-forward network's width is wrong in files of llama.cpp's converter.
        inner = count_rows(backend, "v.blk.0.ffn_up.weight")
        sizes = LayerSizes.from_config(keys, activation="gelu_quick", eps=CLIP_EPS, inner=inner)
        self.sizes, self.width, self.joined = sizes, sizes.width, 2 * sizes.width
        self.cols = keys.uint("vision.projection_dim", at_least=1)
        self.fewest = keys.uint("vision.preproc_min_tiles", 2, at_least=1)
        self.most = keys.uint("vision.preproc_max_tiles", 9)
        self.tile = keys.uint("vision.preproc_tile_size", TILE, at_least=1)
        self.statistics = [
            keys.floats(f"vision.{name}", [0.5] * 3) for name in ("image_mean", "image_std")
        ]
        self.pre_norm = nn.weight("v.pre_ln", "width", kind=nn.LayerNorm(CLIP_EPS), needed=True)
        super().__init__(backend)
        self.sam = self._make_sam()
        self.base = self.sam.base * self.patch
        self._require()
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def _make_sam(self) -> Sam:
        """Make and fill SAM's encoder; the file's keys have the size of CLIP's patches."""
        keys = self.config
        width = keys.uint("vision.sam.embedding_length", at_least=1)
        heads = keys.uint("vision.sam.head_count", at_least=1)
        if width % heads:
            raise self.fail(
                f"vision.sam.embedding_length is {width}, needs a multiple of {heads} heads"
            )
        info = self.backend.file.tensors.get("v.sam.patch_embd.weight")
        self.patch = 16 if info is None else math.isqrt(math.prod(info.shape[1:]) // 3)
        window = keys.uint("vision.window_size", 14, at_least=1)
        whole = keys.ints("vision.sam.global_layers", GLOBAL_LAYERS)
        inner = count_rows(self.backend, "v.sam.blk.0.mlp.lin1.weight") or 4 * width
        sam = Sam(width, self.patch)
        self.fill(sam, "v.sam.")
        sam.layers = [
            SamLayer(width, heads, inner, 0 if number in whole else window)
            for number in range(keys.uint("vision.sam.block_count", at_least=1))
        ]
        for number, layer in enumerate(sam.layers):
            self.fill(layer, f"v.sam.blk.{number}.")
        return sam

    def _require(self) -> None:
        """Raise if tensors do not fit each other, or views do not fit the tower."""
        sam, step = self.sam, REDUCTION * self.patch
        if sam.base**2 * sam.width != sam.positions.size:
            raise self.fail(
                f"tensor v.sam.pos_embd.weight is {sam.positions.shape}, needs (side, side, "
                f"{sam.width})"
            )
        for name, side in (("picture", self.base), ("tile", self.tile)):
            if side % step:
                raise self.fail(
                    f"a {name} has {side} pixels a side, needs a multiple of {step}: {REDUCTION} "
                    f"patches of {self.patch}"
                )
        places = self.positions.size // self.width
        side = math.isqrt(max(places - 1, 0))
        if side**2 + 1 != places or places * self.width != self.positions.size:
            raise self.fail(
                f"tensor v.position_embd.weight is {self.positions.shape}, needs (1 + side², "
                f"{self.width})"
            )
        self.side = side
        if sam.reduce2.shape[0] != self.width:
            raise self.fail(
                f"tensor v.sam.net_3.weight is {sam.reduce2.shape}, needs {self.width} outputs"
            )
        if not self.fewest <= self.most and self.most:
            raise self.fail(
                f"vision.preproc_min_tiles is {self.fewest}, needs at most "
                f"vision.preproc_max_tiles, {self.most}"
            )

    def prepare(self, source: NDArray[Any]) -> Media:
        """Fit a picture into a grey square, and cut one that is larger than a tile into tiles."""
        arrays: dict[str, NDArray[Any]] = {
            "whole": self.split([fit_square(source, self.base, GREY)])
        }
        height, width = source.shape[:2]
        grid = (0, 0)
        if self.most and max(height, width) > self.tile:
            grid = find_grid((height, width), (self.tile, self.tile), self.fewest, self.most)
            scaled = resize(source, grid[0] * self.tile, grid[1] * self.tile)
            arrays["tiles"] = self.split(split_tiles(scaled, grid))
        arrays["order"] = order = self.order(grid)
        return make_media(arrays, [Rows(len(order))])

    def split(self, views: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Normalise views and split them into patches: (views · patches, values)."""
        parts = [split_patches(normalise(view, *self.statistics), self.patch) for view in views]
        return np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])

    def order(self, grid: tuple[int, int]) -> NDArray[np.int32]:
        """Return the order of rows, numbered tile by tile, then those of the whole picture.

        Lines go across all tiles of a row, and end with the learned row, whose number is after the
        last one of the picture. The row that ends the picture has the next number.
        """
        down, across = grid
        small, large = (side // (REDUCTION * self.patch) for side in (self.tile, self.base))
        count = down * across * small**2
        tiles = np.arange(count).reshape(down, across, small, small).swapaxes(1, 2)
        newline = count + large**2
        lines = [
            tiles.reshape(down * small, across * small),
            np.arange(count, newline).reshape(large, large),
        ]
        ended = [
            np.concatenate([each, np.full((len(each), 1), newline)], 1).ravel() for each in lines
        ]
        return np.concatenate([*ended, [newline + 1]]).astype(np.int32)

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of tiles, line by line, then those of the whole picture."""
        x = self.encode_views(context, inputs["whole"], self.base // self.patch)
        if "tiles" in inputs:
            tiles = self.encode_views(context, inputs["tiles"], self.tile // self.patch)
            x = tiles.concat(x, axis=0)
        for row in (self.newline, self.separator):
            x = x.concat(row.reshape(1, self.cols), axis=0)
        return x.rows(inputs["order"])

    def encode_views(self, context: Context, patches: Tensor, side: int) -> Tensor:
        """Return a row for each square of patches: (views · side² / 16, cols)."""
        reduced = self.sam(context, patches, side)
        views, count = reduced.shape[0], (side // REDUCTION) ** 2
        x = reduced.reshape(views * count, self.width)
        # One gather puts the class token, whose row is the last, before each view.
        numbers = np.arange(views * count, dtype=np.int32).reshape(views, count)
        order = np.concatenate([np.full((views, 1), views * count, np.int32), numbers], 1)
        y = x.concat(self.class_row.reshape(1, self.width), axis=0)
        y = y.rows(context.from_numpy(order.ravel())).reshape(views, count + 1, self.width)
        table = self.positions.reshape(-1, self.width)
        # The class token's position is the first.
        numbers = np.arange(len(table), dtype=np.int32)
        own, square = (table.rows(context.from_numpy(each)) for each in (numbers[:1], numbers[1:]))
        square = square.reshape(self.side, self.side, self.width)
        places = resize_square(context, square, side // REDUCTION)
        y = y.add(own.concat(places, axis=0))
        y = self.pre_norm(y.contiguous().reshape(-1, self.width))
        for layer in self.layers:
            y = layer(y, runs=[count + 1] * views)
        y = y.reshape(views, count + 1, self.width).slice(1, 1, count + 1)
        return self.projection(y.contiguous().reshape(-1, self.width).concat(x, axis=1))
