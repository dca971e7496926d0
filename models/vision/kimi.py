"""The towers of Kimi-VL and Kimi K2.5: Kimi Team 2025, "Kimi-VL Technical Report", §2.1.

MoonViT, a vision transformer for pictures of any size: its position embeddings are resized, and
queries and keys have RoPE by row and column. Squares of patches are joined and projected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.errors import OptionError
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, rotation_at
from wgpu_backend.nn.vision.positions import cubic_weights, resize_table
from wgpu_backend.nn.vision.processing import (
    F32s,
    Filter,
    colour_statistics,
    list_places,
    normalise,
    normalise_fused,
    pad,
    resize,
    resize_coarsely,
    split_patches,
)

# The published code uses this epsilon for every norm.
EPS = 1e-5
MOST_SIDE = 512
"""The most patches along a side."""


@projector("kimivl")
class KimiVision(Tower):
    """MoonViT, a norm of patches, and two matrices for squares of them."""

    placeholder = "<|media_pad|>"
    around = ("<|media_start|>image<|media_content|>", "<|media_end|>")
    most_patches: ClassVar[int] = 4096
    is_woven: ClassVar[bool] = True

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    positions: Tensor = nn.weight("v.position_embd.weight")
    post_norm: nn.LayerNorm
    norm: nn.LayerNorm
    up: nn.Linear = nn.weight("mm.1", "joined", "joined")
    down: nn.Linear = nn.weight("mm.2", "cols", "joined")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys, activation="gelu", eps=EPS)
        self.sizes, self.width = sizes, sizes.width
        self.cols = keys.uint("vision.projection_dim", at_least=1)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.square = keys.uint("vision.projector.scale_factor", 2, at_least=1)
        self.step = self.patch * self.square
        self.patch_values, self.joined = 3 * self.patch**2, self.square**2 * self.width
        self.most = keys.uint("vision.max_patches", self.most_patches, at_least=1)
        self.pads = keys.bool("vision.pad_input", True)
        # llama.cpp's converter sorts the pairs of Kimi K2.5, and leaves those of Kimi-VL.
        self.woven = keys.bool("vision.rope.woven", self.is_woven)
        self.statistics = colour_statistics(keys)
        self.post_norm = nn.weight("v.post_ln", "width", kind=nn.LayerNorm(EPS))
        self.norm = nn.weight("mm.input_norm", "width", kind=nn.LayerNorm(EPS))
        super().__init__(backend)
        # Rows and columns of the table, joined in files of Kimi-VL, where it is a square.
        *shape, width = self.positions.shape
        self.table = (shape[0], shape[1]) if len(shape) == 2 else (math.isqrt(shape[0]),) * 2
        if width != self.width or math.prod(self.table) != math.prod(shape):
            raise self.fail(
                f"tensor v.position_embd.weight is {self.positions.shape}, needs (rows, columns, "
                f"{self.width}) or (side², {self.width})"
            )
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Reduce a picture to the most patches, and pad or crop it to whole squares of them."""
        patches = split_patches(self.values(source), self.patch, merge=self.square)
        rows, columns = patches.shape[:2]
        arrays = {
            "patches": patches.reshape(-1, self.patch_values),
            "places": list_places(rows, columns, self.square),
            "by_row": cubic_weights(self.table[0], rows * self.square),
            "by_column": cubic_weights(self.table[1], columns * self.square),
        }
        return make_media(arrays, [Rows(rows * columns)])

    def values(self, source: NDArray[Any]) -> F32s:
        """Return a picture's values: (height, width, 3), in multiples of `step`."""
        height, width = source.shape[:2]
        count = (height // self.patch) * (width // self.patch)
        if count > self.most:
            scale = math.sqrt(self.most / count)
            height, width = max(int(height * scale), 1), max(int(width * scale), 1)
            source = resize(source, height, width)
        if self.pads:
            size = -(-height // self.step) * self.step, -(-width // self.step) * self.step
            source = pad(source, size)
        else:
            size = height // self.step * self.step, width // self.step * self.step
            if not all(size):
                raise OptionError(
                    f"picture: {width} x {height} pixels, this model needs at least {self.step} on "
                    "each side"
                )
            top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
            source = source[top : top + size[0], left : left + size[1]]
        if max(size) >= MOST_SIDE * self.patch:
            raise OptionError(
                f"picture: {size[1]} x {size[0]} pixels, this model takes less than "
                f"{MOST_SIDE * self.patch} on each side; make it smaller"
            )
        return normalise(source, *self.statistics)

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, in raster order."""
        table = self.positions.reshape(*self.table, self.width)
        places = resize_table(table, inputs["by_row"], inputs["by_column"], self.square)
        x = self.patches(inputs["patches"]).add(places)
        pairs = "woven" if self.woven else "columns first"
        rotate = rotation_at(inputs["places"], self.sizes.head, interleaved=True, pairs=pairs)
        for layer in self.layers:
            x = layer(x, rotate)
        x = self.norm(self.post_norm(x)).reshape(-1, self.joined)
        return self.down(self.up(x).gelu_erf())


@projector("kimik25")
class KimiK25Vision(KimiVision):
    """Kimi K2.5's MoonViT, for larger pictures."""

    around = ("<|media_begin|>image<|media_content|>", "<|media_end|>")
    most_patches = 16384
    is_woven = False

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        key = "vision.image_max_pixels"
        if key in self.config:
            self.most = self.config.uint(key) // self.patch**2
        self.most_side = self.config.uint("vision.max_side_patches", MOST_SIDE, at_least=1)

    def values(self, source: NDArray[Any]) -> F32s:
        """Return a picture's values, reduced to the most patches in all and along a side."""
        size = source.shape[:2]
        count = math.prod(max(1.0, side // self.patch) for side in size)
        most = self.most_side * self.patch
        scale = min(1.0, math.sqrt(self.most / count), most / size[0], most / size[1])
        height, width = (min(max(1, int(side * scale)), most) for side in size)
        # The published processor resizes with torchvision.
        made = resize_coarsely(source, height, width, Filter.BICUBIC)
        whole = -(-height // self.step) * self.step, -(-width // self.step) * self.step
        return normalise_fused(pad(made, whole), *self.statistics)
