"""Pixtral's and Mistral Small 3.1's tower: Agrawal et al. 2024, "Pixtral 12B", §2.2.

A vision transformer for pictures of any size, with RoPE by row and column. Mistral Small joins
squares of patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, rotation_at
from wgpu_backend.nn.vision.processing import (
    colour_statistics,
    fit_patches,
    list_places,
    normalise,
    resize,
    split_patches,
)

# Not in config.json: a constant of the published code.
EPS = 1e-5


@projector("pixtral")
class PixtralVision(Tower):
    """A vision transformer with RMS norms, and two matrices."""

    placeholder = "[IMG]"

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    pre_norm: nn.RMSNorm
    norm: nn.RMSNorm | None
    merger: nn.Linear | None = nn.weight("mm.patch_merger", "width", "joined")
    up: nn.Linear = nn.weight("mm.1", "cols", "width")
    down: nn.Linear = nn.weight("mm.2", "cols", "cols")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys, activation="silu", norm=nn.RMSNorm, eps=EPS)
        self.sizes, self.width = sizes, sizes.width
        self.cols = keys.uint("vision.projection_dim", at_least=1)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.square = keys.uint("vision.spatial_merge_size", 1, at_least=1)
        self.longest = keys.uint("vision.image_size", at_least=self.patch)
        self.patch_values, self.joined = 3 * self.patch**2, self.square**2 * self.width
        self.base = keys.float("vision.rope.freq_base", 10_000.0)
        # In mmproj files the values of a RoPE pair are adjacent, in Ollama's files they are not.
        self.interleaved = keys.bool("vision.rope.interleaved", True)
        self.statistics = colour_statistics(keys)
        # Mistral Small uses the language model's epsilon, which mmproj files do not have. Published
        # models have the same one in both.
        eps = keys.float("vision.projector.layer_norm_epsilon", EPS)
        self.norm = nn.weight("mm.input_norm", "width", kind=nn.RMSNorm(eps), needed=False)
        self.pre_norm = nn.weight("v.pre_ln", "width", kind=nn.RMSNorm(EPS))
        super().__init__(backend)
        if (self.merger is None) != (self.square == 1):
            raise self.fail(
                f"vision.spatial_merge_size is {self.square}, but tensor mm.patch_merger.weight is "
                f"{'missing' if self.merger is None else 'in the file'}"
            )
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Reduce a picture to at most `longest` on each side, in whole squares of patches."""
        step = self.patch * self.square
        size = fit_patches(source.shape[:2], self.longest, step)
        values = normalise(resize(source, *size), *self.statistics)
        patches = split_patches(values, self.patch, merge=self.square)
        rows, columns = size[0] // step, size[1] // step
        layout: list[str | Rows] = []
        for _ in range(rows):
            layout += [Rows(columns), "[IMG_BREAK]"]
        layout[-1] = "[IMG_END]"
        arrays = {
            "patches": patches.reshape(-1, self.patch_values),
            "places": list_places(rows, columns, self.square),
        }
        return make_media(arrays, layout)

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each patch or square of patches, line by line."""
        x = self.pre_norm(self.patches(inputs["patches"]))
        rotate = rotation_at(
            inputs["places"],
            self.sizes.head,
            base=self.base,
            interleaved=self.interleaved,
            alternate=True,
        )
        for layer in self.layers:
            x = layer(x, rotate)
        x = x if self.norm is None else self.norm(x)
        if self.merger is not None:
            # In the merger's matrix the patches' values of one column are adjacent.
            squares = x.reshape(-1, self.square**2, self.width).permute(0, 2, 1)
            x = self.merger(squares.contiguous().reshape(-1, self.joined))
        return self.down(self.up(x).gelu_erf())
