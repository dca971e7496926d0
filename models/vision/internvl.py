"""InternVL 3's tower: Zhu et al. 2025, "InternVL3", §2.1, and Chen et al. 2024, "InternVL 1.5", §3.

InternViT on tiles of a picture and on the whole picture. Squares of patches are joined, normalised
and projected.
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
from wgpu_backend.nn.vision.processing import find_grid, resize, split_tiles
from wgpu_backend.nn.vision.tiles import TiledTower


@projector("internvl")
class InternVLVision(TiledTower):
    """InternViT on tiles, with a norm and two matrices for joined squares of patches."""

    placeholder = "<IMG_CONTEXT>"
    class_place = "first"

    norm: nn.LayerNorm
    up: nn.Linear = nn.weight("mm.model.mlp.1", "cols", "joined")
    down: nn.Linear = nn.weight("mm.model.mlp.3", "cols", "cols")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        # The file's key does not say which GELU it is.
        sizes = LayerSizes.from_config(keys, activation="gelu_erf")
        square = keys.uint("vision.projector.scale_factor", at_least=1)
        self.joined = sizes.width * square**2
        self.fewest = keys.uint("vision.preproc_min_tiles", 1, at_least=1)
        self.most = keys.uint("vision.preproc_max_tiles", 12, at_least=self.fewest)
        self.norm = nn.weight("mm.model.mlp.0", "joined", kind=nn.LayerNorm(1e-5))
        super().__init__(backend, sizes, square)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to the grid of tiles with the nearest proportions."""
        grid = find_grid(source.shape[:2], (self.tile, self.tile), self.fewest, self.most)
        tiles = split_tiles(resize(source, grid[0] * self.tile, grid[1] * self.tile), grid)
        if len(tiles) > 1:
            tiles.append(resize(source, self.tile, self.tile))
        rows = Rows(len(tiles) * (self.side // self.square) ** 2)
        return make_media({"patches": self.split(tiles)}, ["<img>", rows, "</img>"])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, tile by tile, the whole picture last."""
        x = self.join_squares(self.encode_tiles(context, inputs["patches"]))
        return self.down(self.up(self.norm(x)).gelu_erf())
