"""Llama 4's tower: Meta 2025, "The Llama 4 herd".

A vision transformer with RoPE by row and column, on tiles of a picture and on the whole picture.
Squares of patches are joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, make_media, projector
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, Rotate, count_rows, rotation
from wgpu_backend.nn.vision.processing import (
    Bytes,
    fit_llama4,
    normalise_half,
    pad,
    resize_coarsely,
    split_tiles,
)
from wgpu_backend.nn.vision.tiles import TiledTower

# The published code uses PyTorch's default, and ignores config.json.
EPS = 1e-5


@projector("llama4")
class Llama4Vision(TiledTower):
    """A vision transformer, two matrices for joined squares of patches and the projection."""

    placeholder = "<|image|>"
    class_place = "last"

    up: nn.Linear = nn.weight("mm.model.mlp.1", "inner", "joined")
    down: nn.Linear = nn.weight("mm.model.mlp.2", "outer", "inner")
    projection: nn.Linear = nn.weight("mm.model.fc", "cols", "outer")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys, activation="gelu_erf", eps=EPS)
        square = keys.uint("vision.projector.scale_factor", at_least=1)
        self.joined = sizes.width * square**2
        self.inner = count_rows(backend, "mm.model.mlp.1.weight")
        self.outer = count_rows(backend, "mm.model.mlp.2.weight")
        self.most = keys.uint("vision.preproc_max_tiles", 16, at_least=1)
        super().__init__(backend, sizes, square)

    def make_layer(self) -> EncoderLayer:
        """Make a layer; files of some converters have its second norm under Gemma 4's name."""
        layer = super().make_layer()
        if "v.blk.0.attn_post_norm.weight" in self.backend.file.tensors:
            norm = self.sizes.make_norm()
            layer.ln2 = nn.weight("attn_post_norm", "width", kind=norm, needed=True)
        return layer

    def prepare(self, source: NDArray[Any]) -> Media:
        """Fit a picture into a grid of tiles, padded with black at the right and bottom."""
        grid, inner = fit_llama4(source.shape[:2], self.tile, self.most)
        canvas = grid[0] * self.tile, grid[1] * self.tile
        tiles = split_tiles(pad(resize_coarsely(source, *inner), canvas), grid)
        if len(tiles) > 1:
            tiles.append(resize_coarsely(source, self.tile, self.tile))
        return make_media({"patches": self.split(tiles)}, self._layout(grid))

    def _layout(self, grid: tuple[int, int]) -> list[str | Rows]:
        """Return the layout: tiles with separators, and the whole picture or the only tile."""
        rows, text = Rows((self.side // self.square) ** 2), "<|image_start|>"
        layout: list[str | Rows] = []
        for _ in range(grid[0] if grid != (1, 1) else 0):
            for _ in range(grid[1]):
                layout += [text, rows]
                text = "<|tile_x_separator|>"
            text = "<|tile_y_separator|>"
        return [*layout, f"{text}<|image|>", rows, "<|image_end|>"]

    def normalise(self, tile: Bytes) -> NDArray[np.float32]:
        """Return the normalised values of a tile, rounded to bf16: (height, width, 3)."""
        return normalise_half(tile, *self.statistics)

    def rotate(self, context: Context, tiles: int) -> Rotate:
        """Return RoPE by column and row, counted from 1; class tokens are not rotated."""
        rows, columns = np.divmod(self.raster, self.side)
        places = np.stack([columns + 1, rows + 1], 1)
        whole = np.concatenate([places, np.zeros((1, 2), places.dtype)])
        every = np.tile(whole, (tiles, 1)).astype(np.int32)
        return rotation(context, every, self.sizes.head, interleaved=True)

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, tile by tile."""
        x = self.join_squares(self.encode_tiles(context, inputs["patches"]))
        x = self.down(self.up(x).gelu_erf()).gelu_erf()
        return self.projection(x)
