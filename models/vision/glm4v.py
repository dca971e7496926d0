"""GLM-4.1V's tower: GLM-V Team 2025, "GLM-4.1V-Thinking and GLM-4.5V", §2.

A vision transformer for pictures of any size: its position embeddings are resized, and queries
and keys have RoPE by row and column. A convolution joins squares of patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, count_rows, rotation_at
from wgpu_backend.nn.vision.positions import cubic_weights, resize_table
from wgpu_backend.nn.vision.processing import (
    colour_statistics,
    fit_frames,
    list_places,
    normalise,
    resize,
    split_patches,
)


@projector("glm4v")
class Glm4Vision(Tower):
    """A vision transformer with RMS norms, a convolution and a gated projection."""

    placeholder = "<|image|>"

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    second_frame: Tensor = nn.weight("v.patch_embd.weight.1", "width", "patch_values")
    patch_norm: nn.RMSNorm
    positions: Tensor = nn.weight("v.position_embd.weight")
    post_norm: nn.RMSNorm
    merger: nn.Linear = nn.weight("mm.patch_merger", "cols", "joined")
    projection: nn.Linear = nn.weight("mm.model.fc", "cols", "cols")
    projected_norm: nn.LayerNorm
    gate: nn.Linear = nn.weight("mm.gate", "inner", "cols")
    up: nn.Linear = nn.weight("mm.up", "inner", "cols")
    down: nn.Linear = nn.weight("mm.down", "cols", "inner")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.cols = keys.uint("vision.projection_dim", at_least=1)
        # The file's key for the feed-forward width has the projection's.
        sizes = LayerSizes.from_config(keys, activation="silu", norm=nn.RMSNorm, inner=self.cols)
        self.sizes, self.width = sizes, sizes.width
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.square = keys.uint("vision.spatial_merge_size", 2, at_least=1)
        self.step = self.patch * self.square
        self.patch_values, self.joined = 3 * self.patch**2, self.square**2 * self.width
        self.inner = count_rows(backend, "mm.up.weight")
        area = self.step**2
        self.fewest = keys.uint("vision.image_min_pixels", 8 * area)
        self.most = keys.uint("vision.image_max_pixels", 4096 * area, at_least=area)
        self.statistics = colour_statistics(keys)
        self.patch_norm = nn.weight("v.norm_embd", "width", kind=nn.RMSNorm(sizes.eps))
        self.post_norm = nn.weight("v.post_ln", "width", kind=nn.RMSNorm(sizes.eps))
        self.projected_norm = nn.weight("mm.post_norm", "cols", kind=nn.LayerNorm(1e-5))
        super().__init__(backend)
        self.side = isqrt(self.positions.shape[0])
        if self.positions.shape != (self.side**2, self.width):
            raise self.fail(
                f"tensor v.position_embd.weight is {self.positions.shape}, needs (side², "
                f"{self.width})"
            )
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to whole squares of patches, within the limits on pixels."""
        # The processor counts the pixels of both frames.
        size = fit_frames(source.shape[:2], self.step, 2 * self.fewest, 2 * self.most)
        values = normalise(resize(source, *size), *self.statistics)
        patches = split_patches(values, self.patch, merge=self.square)
        rows, columns = patches.shape[:2]
        arrays = {
            "patches": patches.reshape(-1, self.patch_values),
            "places": list_places(rows, columns, self.square),
            "by_row": cubic_weights(self.side, rows * self.square),
            "by_column": cubic_weights(self.side, columns * self.square),
        }
        return make_media(arrays, [Rows(rows * columns, (1, rows, columns))])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, in raster order."""
        # The convolution takes two frames; a still picture is both.
        x = self.patches(inputs["patches"], self.second_frame.linear(inputs["patches"], None))
        table = self.positions.reshape(self.side, self.side, self.width)
        added = resize_table(table, inputs["by_row"], inputs["by_column"], self.square)
        x = self.patch_norm(x).add(added)
        rotate = rotation_at(inputs["places"], self.sizes.head)
        for layer in self.layers:
            x = layer(x, rotate)
        x = self.post_norm(x).reshape(-1, self.square**2, self.width).permute(0, 2, 1)
        x = self.projection(self.merger(x.contiguous().reshape(-1, self.joined)))
        x = self.projected_norm(x).gelu_erf()
        return self.down(self.gate(x).swiglu(self.up(x)))
