"""A base class of towers that cut pictures into tiles of one size.

Tiles are encoded in one batch; patches attend only to their own tile. Patches that are joined into
one row, a square, are consecutive, so that joining them is a reshape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.layers import LayerNorm, Linear
from wgpu_backend.nn.module import weight
from wgpu_backend.nn.tower import Tower
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, Rotate
from wgpu_backend.nn.vision.processing import Bytes, colour_statistics, normalise, split_patches


class TiledTower(Tower):
    """A vision transformer over square tiles.

    Parameters
    ----------
    backend : Backend
    sizes : LayerSizes
        Sizes of the layers.
    square : int
        Patches along the side of a square; patches are ordered square by square.
    cols : int or None
        Columns of a row; None for ``vision.projection_dim``.

    Attributes
    ----------
    class_place : str or None
        Place of the class token in each tile; None without one.
    tile, patch, side, count : int
        Pixels along the side of a tile, and of a patch; patches along the side of a tile, and in
        all of it.
    """

    class_place: ClassVar[Literal["first", "last"] | None] = None

    patches: Linear = weight("v.patch_embd", "width", "patch_values")
    class_row: Tensor | None = weight("v.class_embd")
    positions: Tensor = weight("v.position_embd.weight")
    pre_norm: LayerNorm | None
    post_norm: LayerNorm | None

    def __init__(
        self, backend: Backend, sizes: LayerSizes, square: int = 1, cols: int | None = None
    ) -> None:
        keys = backend.config
        self.sizes, self.width, self.square = sizes, sizes.width, square
        self.cols = keys.uint("vision.projection_dim", at_least=1) if cols is None else cols
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.tile = keys.uint("vision.image_size", at_least=self.patch)
        self.side = self.tile // self.patch
        self.count, self.patch_values = self.side**2, 3 * self.patch**2
        self.statistics = colour_statistics(keys)
        self.pre_norm = weight("v.pre_ln", "width", kind=LayerNorm(sizes.eps), needed=False)
        self.post_norm = weight("v.post_ln", "width", kind=LayerNorm(sizes.eps), needed=False)
        super().__init__(backend)
        self._require()
        self.layers = self.fill_layers(self.make_layer, sizes.count)

    def _require(self) -> None:
        """Raise if the class token or the positions do not fit the file's keys."""
        has_class = self.class_place is not None
        if has_class and (self.class_row is None or self.class_row.size != self.width):
            raise self.fail(f"tensor v.class_embd is missing or not of {self.width} values")
        wanted = (self.count + has_class, self.width)
        if self.positions.shape[-2:] != wanted or self.positions.size != wanted[0] * wanted[1]:
            raise self.fail(
                f"tensor v.position_embd.weight is {self.positions.shape}, the file's keys "
                f"need {wanted}"
            )
        if self.side % self.square:
            raise self.fail(
                f"vision.projector.scale_factor is {self.square}, needs a divisor of the "
                f"{self.side} patches along a tile"
            )

    def make_layer(self) -> EncoderLayer:
        """Make a layer of the transformer."""
        return EncoderLayer(self.sizes)

    def rotate(self, context: Context, tiles: int) -> Rotate | None:
        """Return the RoPE of queries and keys of all tiles' rows; None for no RoPE."""
        return None

    def split(self, tiles: Sequence[Bytes]) -> NDArray[np.float32]:
        """Normalise tiles and split them into patches: (tiles · count, values)."""
        return self.split_values([self.normalise(tile) for tile in tiles])

    def split_values(self, tiles: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Split normalised tiles into patches: (tiles · count, values)."""
        parts = [split_patches(values, self.patch, merge=self.square) for values in tiles]
        return np.concatenate([part.reshape(self.count, -1) for part in parts])

    def normalise(self, tile: Bytes) -> NDArray[np.float32]:
        """Return the normalised values of a tile: (height, width, 3)."""
        return normalise(tile, *self.statistics)

    @property
    def raster(self) -> NDArray[np.int32]:
        """Return the raster index of each patch in its tile: (count,)."""
        rows = self.side // self.square
        numbers = np.arange(self.count, dtype=np.int32)
        shaped = numbers.reshape(rows, self.square, rows, self.square)
        return shaped.transpose(0, 2, 1, 3).ravel()

    def embed(self, context: Context, patches: Tensor) -> Tensor:
        """Return the states of all tiles before the first layer: (tiles, rows, width)."""
        tiles, places = patches.shape[0] // self.count, self.raster
        x = self.patches(patches)
        if self.class_row is not None and self.class_place is not None:
            first = self.class_place == "first"
            numbers = np.arange(tiles * self.count, dtype=np.int32).reshape(tiles, -1)
            # One gather puts the class token, whose row is the last, into every tile.
            own = np.full((tiles, 1), tiles * self.count, np.int32)
            order = np.concatenate([own, numbers] if first else [numbers, own], 1)
            x = x.concat(self.class_row.reshape(1, self.width), axis=0)
            x = x.rows(context.from_numpy(order.ravel()))
            # The table has the class token's position where the file has the token.
            places = np.concatenate([[0], places + 1] if first else [places, [self.count]])
        table = self.positions.reshape(-1, self.width)
        added = table.rows(context.from_numpy(places.astype(np.int32)))
        return x.reshape(tiles, -1, self.width).add(added)

    def list_states(self, context: Context, patches: Tensor) -> list[Tensor]:
        """Return the states before the first layer and after each: (tiles · rows, width) each."""
        x = self.embed(context, patches)
        tiles, rows = x.shape[:2]
        x = x.contiguous().reshape(tiles * rows, self.width)
        states = [x if self.pre_norm is None else self.pre_norm(x)]
        rotate = self.rotate(context, tiles)
        for layer in self.layers:
            states.append(layer(states[-1], rotate, [rows] * tiles))
        return states

    def encode_tiles(self, context: Context, patches: Tensor) -> Tensor:
        """Return the states of all patches after the last norm: (tiles · count, width)."""
        x = self.list_states(context, patches)[-1]
        return self.drop_class(x if self.post_norm is None else self.post_norm(x))

    def drop_class(self, x: Tensor) -> Tensor:
        """Drop the class token of each tile: (tiles · rows, width) to (tiles · count, width)."""
        if self.class_place is None:
            return x
        start = 1 if self.class_place == "first" else 0
        whole = x.reshape(-1, self.count + 1, self.width).slice(1, start, start + self.count)
        return whole.contiguous().reshape(-1, self.width)

    def join_squares(self, x: Tensor) -> Tensor:
        """Join the patches of each square: (patches, width) to (squares, square² · width)."""
        each = self.square**2
        return x.reshape(x.shape[0] // each, each * self.width)
