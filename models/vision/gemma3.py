"""Gemma 3's tower: Gemma Team 2025, "Gemma 3 Technical Report", §2.1.

SigLIP (Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training") with one picture of fixed
size. Squares of patches are averaged, normalised and projected. The rows of a picture attend to
each other in the language model.
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
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes
from wgpu_backend.nn.vision.processing import (
    Filter,
    colour_statistics,
    normalise,
    resize,
    split_patches,
)


@projector("gemma3")
class Gemma3Vision(Tower):
    """SigLIP, an average over squares, a norm and a matrix."""

    is_causal = False
    placeholder = "<start_of_image>"

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    positions: Tensor = nn.weight("v.position_embd.weight", "count", "width")
    post_norm: nn.LayerNorm
    soft_norm: nn.RMSNorm
    projection: Tensor = nn.weight("mm.input_projection.weight", "width", "cols")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys)
        self.width, self.cols = sizes.width, keys.uint("vision.projection_dim", at_least=1)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.side = keys.uint("vision.image_size", at_least=self.patch) // self.patch
        self.square = keys.uint("vision.projector.scale_factor", 4, at_least=1, at_most=self.side)
        self.count, self.patch_values = self.side**2, 3 * self.patch**2
        self.statistics = colour_statistics(keys)
        self.post_norm = nn.weight("v.post_ln", "width", kind=nn.LayerNorm(sizes.eps))
        self.soft_norm = nn.weight("mm.soft_emb_norm", "width", kind=nn.RMSNorm(sizes.eps))
        super().__init__(backend)
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to the tower's size, without keeping proportions."""
        pixels = resize(source, self.side * self.patch, self.side * self.patch, Filter.BILINEAR)
        values = split_patches(normalise(pixels, *self.statistics), self.patch)
        rows = Rows((self.side // self.square) ** 2)
        layout = ["\n\n<start_of_image>", rows, "<end_of_image>\n\n"]
        return make_media({"patches": values.reshape(self.count, -1)}, layout)

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches."""
        x = self.patches(inputs["patches"]).add(self.positions)
        for layer in self.layers:
            x = layer(x)
        x = self._average(self.post_norm(x))
        # The matrix is stored with its inputs as rows, (width, cols).
        return self.soft_norm(x).matmul(self.projection)

    def _average(self, x: Tensor) -> Tensor:
        """Return the mean of each square: (patches, width) to (squares, width)."""
        count = self.side // self.square
        whole = x.reshape(self.side, self.side, self.width)
        cut = whole.slice(0, 0, count * self.square).slice(1, 0, count * self.square).contiguous()
        parts = cut.reshape(count, self.square, count, self.square, self.width)
        rows = parts.permute(0, 2, 4, 1, 3).contiguous()
        mean = rows.reshape(count * count, self.width, self.square**2).mean(-1)
        return mean.reshape(count * count, self.width)
