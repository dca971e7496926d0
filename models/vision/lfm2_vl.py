"""LFM2-VL's tower: Liquid AI 2025, "LFM2 Technical Report", §5.

SigLIP 2 (Tschannen et al. 2025) for pictures of any size: its position embeddings are resized.
Large pictures are cut into tiles. Squares of patches are joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, count_rows
from wgpu_backend.nn.vision.positions import resize_table, triangle_weights
from wgpu_backend.nn.vision.processing import (
    Bytes,
    colour_statistics,
    find_grid,
    fit_tokens,
    is_large,
    normalise_fused,
    resize_coarsely,
    split_patches,
    split_tiles,
)


@projector("lfm2")
class Lfm2Vision(Tower):
    """SigLIP 2, and two matrices for joined squares of patches."""

    placeholder = "<image>"

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    positions: Tensor = nn.weight("v.position_embd.weight")
    post_norm: nn.LayerNorm
    norm: nn.LayerNorm | None
    up: nn.Linear = nn.weight("mm.1", "inner", "joined")
    down: nn.Linear = nn.weight("mm.2", "cols", "inner")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys, activation="gelu")
        self.width, self.cols = sizes.width, keys.uint("vision.projection_dim", at_least=1)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.square = keys.uint("vision.projector.scale_factor", at_least=1)
        self.step = self.patch * self.square
        self.patch_values, self.joined = 3 * self.patch**2, self.square**2 * self.width
        self.inner = count_rows(backend, "mm.1.weight")
        # The processor's defaults: published mmproj files do not have its settings.
        area = self.step**2
        self.fewest = keys.uint("vision.image_min_pixels", 64 * area) // area
        self.most = keys.uint("vision.image_max_pixels", 256 * area, at_least=area) // area
        self.tile = keys.uint("vision.preproc_image_size", 512, at_least=self.step)
        self.tiles = (
            keys.uint("vision.preproc_min_tiles", 2, at_least=1),
            keys.uint("vision.preproc_max_tiles", 10, at_least=1),
        )
        self.statistics = colour_statistics(keys)
        self.post_norm = nn.weight("v.post_ln", "width", kind=nn.LayerNorm(sizes.eps))
        self.norm = nn.weight("mm.input_norm", "joined", kind=nn.LayerNorm(1e-5), needed=False)
        super().__init__(backend)
        self.side = isqrt(self.positions.shape[0])
        if self.positions.shape != (self.side**2, self.width) or self.tile % self.step:
            raise self.fail(
                f"tensor v.position_embd.weight is {self.positions.shape}, needs (side², "
                f"{self.width}), or tiles of {self.tile} pixels are not a multiple of {self.step}"
            )
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to the allowed number of squares; large ones are also cut into tiles."""
        size = source.shape[:2]
        inner = fit_tokens(size, self.step, self.fewest, self.most)
        parts, grid = [resize_coarsely(source, *inner)], (1, 1)
        limit = self.most * self.step**2 * 2.0
        if self.tiles[1] > 1 and is_large(size, self.step, self.patch, limit):
            grid = find_grid(size, (self.tile, self.tile), *self.tiles)
            whole = resize_coarsely(source, grid[0] * self.tile, grid[1] * self.tile)
            tiles = split_tiles(whole, grid)
            parts = tiles + parts if len(tiles) > 1 else tiles
        arrays = {
            "patches": np.concatenate([self._split(part) for part in parts]),
            "by_row": triangle_weights(self.side, parts[-1].shape[0] // self.patch),
            "by_column": triangle_weights(self.side, parts[-1].shape[1] // self.patch),
        }
        return make_media(arrays, self._layout(grid, [part.shape[:2] for part in parts]))

    def _split(self, part: Bytes) -> NDArray[np.float32]:
        values = normalise_fused(part, *self.statistics)
        return split_patches(values, self.patch, merge=self.square).reshape(-1, self.patch_values)

    def _layout(self, grid: tuple[int, int], sizes: list[tuple[int, int]]) -> list[str | Rows]:
        """Return the layout: tiles with their row and column, then the whole picture."""
        rows = [Rows(size[0] * size[1] // self.step**2) for size in sizes]
        layout: list[str | Rows] = ["<|image_start|>"]
        if grid == (1, 1):
            return [*layout, rows[0], "<|image_end|>"]
        for i in range(grid[0] * grid[1]):
            row, column = divmod(i, grid[1])
            layout += [f"<|img_row_{row + 1}_col_{column + 1}|>", rows[i]]
        return [*layout, "<|img_thumbnail|>", rows[-1], "<|image_end|>"]

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, tile by tile."""
        table = self.positions.reshape(self.side, self.side, self.width)
        last = resize_table(table, inputs["by_row"], inputs["by_column"], self.square)
        x, count = inputs["patches"], last.shape[0]
        each = (self.tile // self.patch) ** 2
        tiles = (x.shape[0] - count) // each
        added = last
        if tiles:
            weights = context.from_numpy(triangle_weights(self.side, self.tile // self.patch))
            one = resize_table(table, weights, weights, self.square)
            added = one.repeat(0, tiles).concat(last, axis=0)
        x = self.patches(x).add(added)
        for layer in self.layers:
            x = layer(x, runs=[each] * tiles + [count])
        x = self.post_norm(x).reshape(-1, self.joined)
        x = x if self.norm is None else self.norm(x)
        return self.down(self.up(x).gelu_erf())
