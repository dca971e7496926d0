"""The towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

Wang et al. 2024, "Qwen2-VL", §2.1: a vision transformer for pictures of any size, whose queries and
keys have RoPE by row and column; four patches become one row. Bai et al. 2025, "Qwen2.5-VL
Technical Report", §2.1: most layers attend within windows, with RMS norms and gates. Bai et al.
2025, "Qwen3-VL Technical Report", §2: position embeddings are added, and rows of some layers are
added after the first layers of the language model (DeepStack: Meng et al. 2024, §3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import (
    EncoderLayer,
    LayerSizes,
    Rotate,
    count_rows,
    rotation_at,
    split_windows,
)
from wgpu_backend.nn.vision.positions import aligned_weights, resize_table
from wgpu_backend.nn.vision.processing import (
    colour_statistics,
    fit_pixels,
    list_places,
    normalise,
    resize,
    split_patches,
)

# The published code uses this epsilon for every norm, and ignores the file's.
EPS = 1e-6
# Limits of the published processor, in squares of 28 x 28 pixels.
FEWEST, MOST = 4, 1280


@projector("qwen2vl_merger")
class Qwen2Vision(Tower):
    """Qwen2-VL's tower."""

    placeholder = "<|image_pad|>"
    around = ("<|vision_start|>", "<|vision_end|>")
    norm: ClassVar[type[nn.Norm]] = nn.LayerNorm
    activation: ClassVar[str] = "gelu_quick"

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    second_frame: Tensor = nn.weight("v.patch_embd.weight.1", "width", "patch_values")
    post_norm: nn.Norm
    first: nn.Linear = nn.weight("mm.0", "joined", "joined")
    second: nn.Linear = nn.weight("mm.2", "out", "joined")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        # Qwen2-VL's key has the language model's width, so a tensor's shape is used instead.
        inner = count_rows(backend, "v.blk.0.ffn_up.weight")
        sizes = LayerSizes.from_config(
            keys, activation=self.activation, norm=self.norm, eps=EPS, inner=inner
        )
        self.sizes, self.width = sizes, sizes.width
        self.out = self.cols = keys.uint("vision.projection_dim", at_least=1)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.square = keys.uint("vision.spatial_merge_size", 2, at_least=1)
        self.step = self.patch * self.square
        self.patch_values, self.joined = 3 * self.patch**2, self.square**2 * self.width
        self.fewest = keys.uint("vision.image_min_pixels", FEWEST * 28**2)
        self.most = keys.uint("vision.image_max_pixels", MOST * 28**2, at_least=self.step**2)
        self.statistics = colour_statistics(keys)
        self.post_norm = nn.weight("v.post_ln", "width", kind=self.norm(EPS), needed=True)
        super().__init__(backend)
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to whole squares of patches, within the limits on pixels."""
        size = fit_pixels(source.shape[:2], self.step, self.fewest, self.most)
        values = normalise(resize(source, *size), *self.statistics)
        patches = split_patches(values, self.patch, merge=self.square)
        rows, columns, each, _ = patches.shape
        places = list_places(rows, columns, self.square).reshape(2, rows * columns, each)
        order = self.order(rows, columns)
        arrays = {
            # The shape keeps rows and columns, since it is the key of a recorded graph.
            "patches": patches.reshape(rows * columns, each, -1)[order].reshape(patches.shape),
            "places": np.ascontiguousarray(places[:, order]).reshape(2, -1),
            **self.tables(rows * self.square, columns * self.square),
        }
        return make_media(arrays, [Rows(rows * columns, (1, rows, columns))])

    def order(self, rows: int, columns: int) -> NDArray[np.intp]:
        """Return the raster index of each square, in the order in which the tower encodes them."""
        return np.arange(rows * columns)

    def tables(self, rows: int, columns: int) -> Mapping[str, NDArray[np.float32]]:
        """Return further graph inputs for a picture of `rows` by `columns` patches."""
        return {}

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, in raster order."""
        rows, columns = inputs["patches"].shape[:2]
        patches = inputs["patches"].reshape(-1, self.patch_values)
        # The convolution takes two frames; a still picture is both.
        x = self.patches(patches, self.second_frame.linear(patches, None))
        x = self.add_positions(x, inputs)
        rotate = rotation_at(inputs["places"], self.sizes.head)
        return self.run_layers(x, rotate, rows, columns)

    def add_positions(self, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Add position embeddings to the patches, if the tower has any."""
        return x

    def run_layers(self, x: Tensor, rotate: Rotate, rows: int, columns: int) -> Tensor:
        """Run the layers over (patches, width), and join squares: (rows · columns, cols)."""
        for layer in self.layers:
            x = layer(x, rotate)
        return self.merge(x)

    def merge(self, x: Tensor) -> Tensor:
        """Normalise patches, and join those of each square."""
        x = self.post_norm(x).reshape(-1, self.joined)
        return self.second(self.first(x).gelu_erf())


@projector("qwen2.5vl_merger")
class Qwen25Vision(Qwen2Vision):
    """Qwen2.5-VL's tower, in which most layers attend within windows."""

    norm = nn.RMSNorm
    activation = "silu"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        keys, count = self.config, self.sizes.count
        if "vision.fullatt_block_indexes" in keys:
            self.whole = set(keys.ints("vision.fullatt_block_indexes"))
        else:
            # One in `each` layers attends to the whole picture; 0 for all layers.
            each = keys.uint("vision.n_wa_pattern", 0)
            self.whole = {i for i in range(count) if each == 0 or (i + 1) % each == 0}
        self.window = max(keys.uint("vision.window_size", 112) // self.step, 1)

    def order(self, rows: int, columns: int) -> NDArray[np.intp]:
        """Return the raster index of each square, window by window."""
        return split_windows(rows, columns, self.window)[0]

    def run_layers(self, x: Tensor, rotate: Rotate, rows: int, columns: int) -> Tensor:
        """Run the layers over patches in window order; the joined squares are in raster order."""
        order, runs = split_windows(rows, columns, self.window)
        lengths = [length * self.square**2 for length in runs]
        for i, layer in enumerate(self.layers):
            x = layer(x, rotate, () if i in self.whole else lengths)
        # The language model expects raster order.
        back = np.argsort(order).astype(np.int32)
        return self.merge(x).rows(x.context.from_numpy(back))


class DeepMerger(nn.Module):
    """The matrices that join squares of patches for one layer of the language model."""

    norm: nn.LayerNorm
    first: nn.Linear = nn.weight("fc1", "joined", "joined")
    second: nn.Linear = nn.weight("fc2", "out", "joined")

    def __init__(self, joined: int, out: int) -> None:
        self.joined, self.out = joined, out
        self.norm = nn.weight("norm", "joined", kind=nn.LayerNorm(EPS), needed=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (patches, width) to (squares, out)."""
        return self.second(self.first(self.norm(x.reshape(-1, self.joined))).gelu_erf())


@projector("qwen3vl_merger")
class Qwen3Vision(Qwen2Vision):
    """Qwen3-VL's tower, with position embeddings, and rows for layers of the language model."""

    activation = "gelu"

    positions: Tensor = nn.weight("v.position_embd.weight")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.side = isqrt(self.positions.shape[0])
        if self.positions.shape != (self.side**2, self.width):
            raise self.fail(
                f"tensor v.position_embd.weight is {self.positions.shape}, needs (side², "
                f"{self.width})"
            )
        key = "vision.is_deepstack_layers"
        deep = self.config.bools(key, self.sizes.count) if key in self.config else []
        self.mergers: dict[int, DeepMerger] = {}
        for number in (i for i, is_deep in enumerate(deep) if is_deep):
            self.mergers[number] = DeepMerger(self.joined, self.out)
            self.fill(self.mergers[number], f"v.deepstack.{number}.")
        # First the rows that replace tokens, then those for each of the first layers.
        self.cols = self.out * (1 + len(self.mergers))

    def tables(self, rows: int, columns: int) -> Mapping[str, NDArray[np.float32]]:
        """Return the weights that resize the position embeddings."""
        return {
            "by_row": aligned_weights(self.side, rows),
            "by_column": aligned_weights(self.side, columns),
        }

    def add_positions(self, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Add the position embeddings, resized to the picture."""
        table = self.positions.reshape(self.side, self.side, self.width)
        return x.add(resize_table(table, inputs["by_row"], inputs["by_column"], self.square))

    def run_layers(self, x: Tensor, rotate: Rotate, rows: int, columns: int) -> Tensor:
        """Run the layers, and concatenate the joined squares of the last and some other layers."""
        parts: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x = layer(x, rotate)
            if i in self.mergers:
                parts.append(self.mergers[i](x))
        return _put_side_by_side([self.merge(x), *parts])


def _put_side_by_side(parts: Sequence[Tensor]) -> Tensor:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.concat(part, axis=1)
    return whole
