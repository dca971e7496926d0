"""Llama 3.2 Vision's tower: Dubey et al. 2024, "The Llama 3 Herd of Models", §7.2.

A vision transformer over all tiles of a picture at once, and further layers with gates. A row has
the last states of a patch, and those after some of the layers. The language model attends to the
rows, which take no places in its prompt.

Weights have the names and values of Ollama's converter, which stores the tanh of gates.
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
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, attend_to, count_rows
from wgpu_backend.nn.vision.processing import (
    Filter,
    colour_statistics,
    fit_mllama,
    list_mllama_grids,
    normalise,
    pad,
    resize,
    split_patches,
    split_tiles,
)

# The published code pads each tile's patches to a multiple of this, and patches see the padding.
MULTIPLE = 8
# The published code uses PyTorch's default for the norms before and after the layers.
EPS = 1e-5


class GatedLayer(EncoderLayer):
    """A layer whose attention and feed-forward network have gates, and whose padding is hidden.

    Patches attend to all rows, padding to patches only.
    """

    scale1: Tensor | None = nn.weight("attn_gate", 1)
    scale2: Tensor | None = nn.weight("ffn_gate", 1)

    def attend(self, x: Tensor, patches: int) -> Tensor:
        """Map (rows, width), patches first, to the same shape."""
        q, k, v = self.attention.project(self.ln1(x))
        seen = attend_to(q.slice(0, 0, patches), k, v)
        hidden = attend_to(q.slice(0, patches, len(q)), *(y.slice(0, 0, patches) for y in (k, v)))
        y = self.attention.out(seen.concat(hidden, axis=0))
        x = x.add(y if self.scale1 is None else y.mul(self.scale1))
        y = self.feed_forward(self.ln2(x))
        return x.add(y if self.scale2 is None else y.mul(self.scale2))


@projector("mllama")
class MllamaVision(Tower):
    """Layers over the patches and class tokens of all tiles, and a matrix."""

    placeholder = "<|image|>"

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    class_row: Tensor = nn.weight("v.class_embd", "width")
    positions: Tensor = nn.weight("v.position_embd.weight", "tile_rows", "width")
    positions_gate: Tensor = nn.weight("v.position_embd.gate", 1)
    tile_positions: Tensor = nn.weight("v.tile_position_embd.weight", "patch_places", "width")
    tile_positions_gate: Tensor = nn.weight("v.tile_position_embd.gate", 1)
    before: Tensor = nn.weight("v.pre_tile_position_embd.weight", "tile_places", "width")
    before_gate: Tensor = nn.weight("v.pre_tile_position_embd.gate", 1)
    after: Tensor = nn.weight("v.post_tile_position_embd.weight", "tile_places", "width")
    after_gate: Tensor = nn.weight("v.post_tile_position_embd.gate", 1)
    pre_norm: nn.LayerNorm
    post_norm: nn.LayerNorm
    projection: nn.Linear = nn.weight("mm.0", "cols", "joined")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.sizes = LayerSizes.from_config(keys)
        self.width = self.sizes.width
        self.cols = keys.uint("vision.projection_dim", at_least=1)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.tile = keys.uint("vision.image_size", at_least=self.patch)
        self.tiles = keys.uint("vision.max_num_tiles", 4, at_least=1)
        self.kept = keys.ints("vision.intermediate_layers_indices")
        self.statistics = colour_statistics(keys)
        self.count, self.patch_values = (self.tile // self.patch) ** 2, 3 * self.patch**2
        # With the class token, which comes first.
        self.tile_rows = self.count + 1
        # Id 0 is for no picture.
        self.tile_places = (len(list_mllama_grids(self.tiles)) + 1) * self.tiles
        self.patch_places = self.tile_places * self.tile_rows
        self.joined = self.width * (1 + len(self.kept))
        self.pre_norm = nn.weight("v.pre_ln", "width", kind=nn.LayerNorm(EPS), needed=True)
        self.post_norm = nn.weight("v.post_ln", "width", kind=nn.LayerNorm(EPS), needed=True)
        super().__init__(backend)
        if not all(0 <= layer < self.sizes.count for layer in self.kept):
            raise self.fail(
                f"vision.intermediate_layers_indices is {list(self.kept)}, needs some of 0 to "
                f"{self.sizes.count - 1}"
            )
        count = keys.uint("vision.global.block_count")
        self.layers = self.fill_layers(self._make_layer, self.sizes.count)
        self.last_layers = self.fill_layers(self._make_layer, count, "v.global.blk.")

    def _make_layer(self) -> GatedLayer:
        layer = GatedLayer(self.sizes)
        # Ollama's first files have the names of the two matrices swapped.
        rows = count_rows(self.backend, "v.blk.0.ffn_down.weight")
        layer.feed_forward.swapped = self.sizes.inner == rows != self.width
        return layer

    def prepare(self, source: NDArray[Any]) -> Media:
        """Fit a picture into a grid of tiles, padded with black at the right and bottom."""
        size = (source.shape[0], source.shape[1])
        grid, inner = fit_mllama(size, self.tile, self.tiles)
        canvas = grid[0] * self.tile, grid[1] * self.tile
        whole = pad(resize(source, *inner, Filter.BILINEAR), canvas)
        parts = [
            split_patches(normalise(tile, *self.statistics), self.patch)
            for tile in split_tiles(whole, grid)
        ]
        patches = np.concatenate([part.reshape(self.count, -1) for part in parts])
        grid_id = list_mllama_grids(self.tiles).index(grid) + 1
        # Rows of the tables by tile, and by patch of each tile.
        by_tile = np.arange(self.tiles, dtype=np.int32) + grid_id * self.tiles
        rows = by_tile[:, None] * self.tile_rows + np.arange(self.tile_rows, dtype=np.int32)
        arrays = {"patches": patches, "by_tile": by_tile, "by_patch": rows.ravel()}
        return make_media(arrays, [Rows(1, states=len(parts) * self.tile_rows)])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each patch and class token of the picture's tiles."""
        patches, by_tile = inputs["patches"], inputs["by_tile"]
        count = patches.shape[0] // self.count * self.tile_rows
        x = self.pre_norm(self._embed(context, patches, by_tile, inputs["by_patch"]))
        order, tile_numbers = self._order(count)
        # Padding is 0: the row after those of all tiles.
        none = context.from_numpy(np.zeros((1, self.width), np.float32))
        x = x.concat(none, axis=0).rows(context.from_numpy(order))
        states = [x := layer.attend(x, count) for layer in self.layers]
        after = self.after.rows(by_tile).mul(self.after_gate)
        x = self.post_norm(x).add(after.rows(context.from_numpy(tile_numbers)))
        for layer in self.last_layers:
            x = layer.attend(x, count)
        kept = [states[layer].slice(0, 0, count).reshape(count, -1, 1) for layer in self.kept]
        x = x.slice(0, 0, count)
        if kept:
            # The kept states of a channel are adjacent.
            joined = kept[0]
            for each in kept[1:]:
                joined = joined.concat(each, axis=2)
            x = x.concat(joined.reshape(count, -1), axis=1)
        return self.projection(x)

    def _embed(
        self, context: Context, patches: Tensor, by_tile: Tensor, by_patch: Tensor
    ) -> Tensor:
        """Return the states of all tiles before the first norm: (tiles · rows, width)."""
        missing = self.tiles * self.count - patches.shape[0]
        x = self.patches(patches)
        if missing:
            # Tiles that the picture does not have are black after normalisation.
            zeros = np.zeros((missing, self.width), np.float32)
            x = x.concat(context.from_numpy(zeros), axis=0)
        before = self.before.rows(by_tile).mul(self.before_gate)
        x = x.reshape(self.tiles, self.count, self.width)
        x = x.add(before.reshape(self.tiles, 1, self.width)).reshape(-1, self.width)
        # One gather puts the class token, whose row is the last, into every tile.
        numbers = np.arange(self.tiles * self.count, dtype=np.int32).reshape(self.tiles, -1)
        own = np.full((self.tiles, 1), numbers.size, np.int32)
        order = np.concatenate([own, numbers], 1).ravel()
        x = x.concat(self.class_row.reshape(1, self.width), axis=0)
        x = x.rows(context.from_numpy(order)).reshape(self.tiles, self.tile_rows, self.width)
        places = context.from_numpy(np.arange(self.tile_rows, dtype=np.int32))
        x = x.add(self.positions.rows(places).mul(self.positions_gate)).reshape(-1, self.width)
        return x.add(self.tile_positions.rows(by_patch).mul(self.tile_positions_gate))

    def _order(self, count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the rows of the picture, then those of padding, and the tile of each.

        Parameters
        ----------
        count : int
            Rows of the picture's tiles.
        """
        padded = -(-self.tile_rows // MULTIPLE) * MULTIPLE
        tile, row = np.divmod(np.arange(self.tiles * padded), padded)
        whole = self.tiles * self.tile_rows
        place = np.where(row < self.tile_rows, tile * self.tile_rows + row, whole)
        hidden = place >= count
        order = np.argsort(hidden, kind="stable")
        return place[order].astype(np.int32), tile[order].astype(np.int32)
