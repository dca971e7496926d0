"""LLaVA's tower: Liu et al. 2023, "Visual Instruction Tuning", §4.1, and LLaVA 1.5 and 1.6.

CLIP's vision transformer without its last layer, and two matrices. LLaVA 1.6 encodes the whole
picture and its tiles. It drops the patches of margins, and ends each line of patches with a
learned row.
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
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes
from wgpu_backend.nn.vision.processing import (
    Size,
    crop_centre,
    find_pinpoint,
    fit_inside,
    fit_shortest,
    pad,
    resize,
    split_tiles,
)
from wgpu_backend.nn.vision.tiles import TiledTower


@projector("mlp")
class LlavaVision(TiledTower):
    """CLIP and two matrices.

    Attributes
    ----------
    pinpoints : list of (int, int)
        Allowed heights and widths of pictures in tiles; empty for LLaVA 1.5, which has one tile.
    """

    placeholder = "<image>"
    class_place = "first"

    newline: Tensor | None = nn.weight("v.image_newline", alt="model.image_newline")
    up: nn.Linear = nn.weight("mm.0", "cols", "joined")
    down: nn.Linear = nn.weight("mm.2", "cols", "cols")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys)
        # Files without the key have only the layers that are used.
        self.features = keys.ints("vision.feature_layer", [sizes.count])
        self.joined = len(self.features) * sizes.width
        # Widths come first in the file.
        sides = keys.ints("vision.image_grid_pinpoints", [])
        self.pinpoints = list(zip(sides[1::2], sides[::2], strict=False))
        last, first = (
            backend.file.tensors.get(f"{n}.weight") for n in ("mm.2", "v.blk.0.ffn_down")
        )
        self.is_swapped = first is not None and first.shape == (sizes.inner, sizes.width)
        # The older converter writes CLIP's own width as the key, so the tensor decides.
        super().__init__(backend, sizes, cols=None if last is None else last.shape[0])
        self._require_keys()

    def _require_keys(self) -> None:
        if not self.features or not all(0 < i <= self.sizes.count for i in self.features):
            raise self.fail(
                f"vision.feature_layer is {self.features}, needs 1 to {self.sizes.count}"
            )
        if any(side % self.tile or not side for size in self.pinpoints for side in size):
            raise self.fail(
                f"vision.image_grid_pinpoints is {self.pinpoints}, needs multiples of {self.tile}"
            )
        if self.pinpoints and self.newline is None:
            raise self.fail("tensor v.image_newline is missing, which ends the lines of tiles")

    def make_layer(self) -> EncoderLayer:
        """Make a layer; files of the older converter swap the names of its two last matrices."""
        layer = super().make_layer()
        layer.feed_forward.swapped = self.is_swapped
        return layer

    def prepare(self, source: NDArray[Any]) -> Media:
        """Crop the centre of a picture; LLaVA 1.6 cuts it into tiles instead."""
        size: Size = source.shape[:2]
        if not self.pinpoints:
            scaled = resize(source, *fit_shortest(size, self.tile))
            tiles = [crop_centre(scaled, (self.tile, self.tile))]
            return make_media({"patches": self.split(tiles)}, [Rows(self.count)])
        canvas = find_pinpoint(size, self.pinpoints)
        inner = resize(source, *fit_inside(size, canvas))
        grid = canvas[0] // self.tile, canvas[1] // self.tile
        tiles = [resize(source, self.tile, self.tile)]
        tiles += split_tiles(pad(inner, canvas, centred=True), grid)
        order = self._order(size, grid)
        arrays = {"patches": self.split(tiles), "order": order}
        return make_media(arrays, [Rows(len(order))])

    def _order(self, size: Size, grid: Size) -> NDArray[np.int32]:
        """Return the order of rows: the whole picture's, then lines of patches across the tiles.

        Margins are left out. Each line ends with the index after the last patch, which stands for
        the learned row.
        """
        side, (down, across) = self.side, grid
        numbers = np.arange(self.count * (1 + down * across), dtype=np.int32)
        tiles = numbers[self.count :].reshape(down, across, side, side)
        lines = _drop_margins(tiles.swapaxes(1, 2).reshape(down * side, across * side), size)
        ends = np.full((len(lines), 1), len(numbers), np.int32)
        return np.concatenate([numbers[: self.count], np.concatenate([lines, ends], 1).ravel()])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each patch, and one at the end of each line of tiles."""
        states = self.list_states(context, inputs["patches"])
        x = self.drop_class(states[self.features[0]])
        for number in self.features[1:]:
            x = x.concat(self.drop_class(states[number]), axis=1)
        x = self.down(self.up(x).gelu_erf())
        if "order" not in inputs or self.newline is None:
            return x
        return x.concat(self.newline.reshape(1, self.cols), axis=0).rows(inputs["order"])


def _drop_margins(lines: NDArray[np.int32], size: Size) -> NDArray[np.int32]:
    """Drop the margins' patches if a picture's proportions differ from the tiles'."""
    height, width = lines.shape
    if size[1] / size[0] > width / height:
        margin = (height - int(round(size[0] * (width / size[1]), 7))) // 2
        return lines[margin : height - margin]
    margin = (width - int(round(size[1] * (height / size[0]), 7))) // 2
    return lines[:, margin : width - margin]
