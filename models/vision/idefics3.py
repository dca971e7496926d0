"""Idefics 3's and SmolVLM's tower.

Laurençon et al. 2024, "Building and better understanding vision-language models", §3: SigLIP on
tiles of a picture and on the whole picture. Squares of patches are joined and projected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, make_media, projector
from wgpu_backend.nn.vision.blocks import LayerSizes
from wgpu_backend.nn.vision.processing import (
    Filter,
    fit_longest,
    fit_tiles,
    resize,
    split_tiles,
)
from wgpu_backend.nn.vision.tiles import TiledTower


@projector("idefics3")
class Idefics3Vision(TiledTower):
    """SigLIP on tiles, and a matrix for joined squares of patches."""

    placeholder = "<image>"

    projection: nn.Linear = nn.weight("mm.model.fc", "cols", "joined")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys, activation="gelu")
        square = keys.uint("vision.projector.scale_factor", at_least=1)
        self.joined = sizes.width * square**2
        tile = keys.uint("vision.image_size", at_least=1)
        self.longest = keys.uint("vision.preproc_image_size", 4 * tile, at_least=1)
        super().__init__(backend, sizes, square)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture by its longer side, up to whole tiles, and append a small copy of it."""
        picture = resize(source, *fit_longest(source.shape[:2], self.longest), Filter.LANCZOS)
        size = fit_tiles(picture.shape[:2], self.tile)
        picture = resize(picture, *size, Filter.LANCZOS)
        grid = size[0] // self.tile, size[1] // self.tile
        tiles = split_tiles(picture, grid)
        if len(tiles) > 1:
            tiles.append(resize(picture, self.tile, self.tile, Filter.LANCZOS))
        return make_media({"patches": self.split(tiles)}, self._layout(grid))

    def _layout(self, grid: tuple[int, int]) -> list[str | Rows]:
        """Return the layout: tiles with row and column, line by line, then the whole picture."""
        rows = Rows((self.side // self.square) ** 2)
        edge, text = "<fake_token_around_image>", ""
        layout: list[str | Rows] = []
        if grid != (1, 1):
            for i in range(grid[0]):
                for j in range(grid[1]):
                    layout += [f"{text}{edge}<row_{i + 1}_col_{j + 1}>", rows]
                    text = ""
                text = "\n"
            text = "\n\n"
        return [*layout, f"{text}{edge}<global-img>", rows, edge]

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, tile by tile."""
        return self.projection(self.join_squares(self.encode_tiles(context, inputs["patches"])))
