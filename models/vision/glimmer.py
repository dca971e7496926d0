"""Muse Glimmer's tower: Meta 2026, model card.

A vision transformer for pictures of any size: position embeddings are resized, and queries and keys
have RoPE by column and row. Most layers attend within windows as large as the table of positions.
The channels of a square of patches are interleaved, and projected by three matrices.
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
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, rotation_at, split_windows
from wgpu_backend.nn.vision.positions import fading_weights, resize_table
from wgpu_backend.nn.vision.processing import (
    Filter,
    colour_statistics,
    fit_proportions,
    list_places,
    normalise_fused,
    resize_coarsely,
    split_patches,
)

# Of the norms in layers; the published code has it as a constant.
EPS = 1e-5
MOST_ROWS = 4096
WHOLE_EACH = 4
"""One in so many layers attends to the whole picture, and the last one does."""


@projector("muse-glimmer")
class GlimmerVision(Tower):
    """The tower of Muse Glimmer, whose rows are normalised as embeddings of tokens are."""

    placeholder = "<|patch|>"

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    positions: Tensor = nn.weight("v.position_embd.weight")
    pre_norm: nn.LayerNorm
    post_norm: nn.LayerNorm
    first: nn.Linear = nn.weight("mm.0", "inner", "joined")
    second: nn.Linear = nn.weight("mm.1", "inner", "inner")
    third: nn.Linear = nn.weight("mm.2", "cols", "inner")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys, activation="gelu_erf", eps=EPS)
        self.sizes, self.width = sizes, sizes.width
        self.cols = keys.uint("vision.projection_dim", at_least=1)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.square = keys.uint("vision.spatial_merge_size", 2, at_least=1)
        self.patch_values, self.joined = 3 * self.patch**2, self.square**2 * self.width
        self.inner = backend.require("mm.0.weight").shape[0]
        self.most = keys.uint("vision.max_rows", MOST_ROWS, at_least=1)
        self.statistics = colour_statistics(keys)
        # Files of llama.cpp lack the key, since its language model normalises the rows.
        self.row_eps = keys.float("vision.projector.layer_norm_epsilon", EPS)
        eps = keys.float("vision.attention.layer_norm_epsilon")
        self.pre_norm, self.post_norm = (
            nn.weight(name, "width", kind=nn.LayerNorm(eps), needed=True)
            for name in ("v.pre_ln", "v.post_ln")
        )
        super().__init__(backend)
        self.side = isqrt(self.positions.shape[0])
        if self.positions.shape != (self.side**2, self.width) or self.side % self.square:
            raise self.fail(
                f"tensor v.position_embd.weight is {self.positions.shape}, needs (side², "
                f"{self.width}), and a side in multiples of {self.square}"
            )
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to whole squares of patches, close to its proportions."""
        step = self.patch * self.square
        rows, columns = fit_proportions(source.shape[:2], step, self.most)
        # The published processor resizes with torchvision.
        whole = resize_coarsely(source, rows * step, columns * step, Filter.LANCZOS)
        patches = split_patches(
            normalise_fused(whole, *self.statistics), self.patch, merge=self.square
        )
        order, _ = split_windows(rows, columns, self.side // self.square)
        places = list_places(rows, columns, self.square).reshape(2, rows * columns, -1)
        arrays = {
            # The shape keeps rows and columns, since it is the key of a recorded graph.
            "patches": patches,
            # Positions count from 1.
            "places": places[:, order].reshape(2, -1) + 1,
            "by_row": fading_weights(self.side, columns * self.square),
            "by_column": fading_weights(self.side, rows * self.square),
        }
        return make_media(arrays, ["<|image_start|>", Rows(rows * columns), "<|image_end|>"])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, in raster order."""
        rows, columns, in_square, _ = inputs["patches"].shape
        x = self.patches(inputs["patches"].reshape(-1, self.patch_values))
        x = self.pre_norm(x.add(self._places(inputs, rows, columns)))
        order, runs = split_windows(rows, columns, self.side // self.square)
        x = self._take(x, order)
        lengths = [length * in_square for length in runs]
        rotate = rotation_at(
            inputs["places"], self.sizes.head, interleaved=True, pairs="columns first"
        )
        for i, layer in enumerate(self.layers):
            is_whole = (i + 1) % WHOLE_EACH == 0 or i == len(self.layers) - 1
            x = layer(x, rotate, () if is_whole else lengths)
        x = self._take(self.post_norm(x), np.argsort(order))
        squares = x.reshape(-1, in_square, self.width).permute(0, 2, 1).contiguous()
        y = self.first(squares.reshape(-1, self.joined)).gelu_erf()
        return self.third(self.second(y).gelu_erf()).rms_norm(None, eps=self.row_eps)

    def _places(self, inputs: Mapping[str, Tensor], rows: int, columns: int) -> Tensor:
        """Return the position embeddings of all patches, square by square."""
        table = self.positions.reshape(self.side, self.side, self.width)
        # The published code resizes the table to (columns, rows), and reads the result in order as
        # (rows, columns). So patches get the embeddings of other places unless the picture is
        # square. The model was trained that way.
        lines = resize_table(table, inputs["by_row"], inputs["by_column"])
        squares = lines.reshape(rows, self.square, columns, self.square, self.width)
        return squares.permute(0, 2, 1, 3, 4).contiguous().reshape(-1, self.width)

    def _take(self, x: Tensor, order: NDArray[np.intp]) -> Tensor:
        """Return the squares of (patches, width) in another order."""
        whole = x.reshape(order.size, -1)
        return whole.rows(x.context.from_numpy(order.astype(np.int32))).reshape(*x.shape)
