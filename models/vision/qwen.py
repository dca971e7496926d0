"""The towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

Wang et al. 2024, "Qwen2-VL", §2.1: a vision transformer for pictures of any size, whose queries and
keys have RoPE by row and column; four patches become one row. Bai et al. 2025, "Qwen2.5-VL
Technical Report", §2.1: most layers attend within windows, with RMS norms and gates. Bai et al.
2025, "Qwen3-VL Technical Report", §2: position embeddings are added, and rows of some layers are
added after the first layers of the language model (DeepStack: Meng et al. 2024, §3).

A video is a list of frames. Two consecutive frames become one grid of rows, and attention stays
within it. Qwen2-VL counts grids in time, Qwen2.5-VL scales these positions by seconds, and Qwen3-VL
writes the time of each grid as text before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt, prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.errors import OptionError
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Grid, Media, Rows, Tower, make_media, projector
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
    Filter,
    Size,
    Value,
    colour_statistics,
    fit_frames,
    fit_pixels,
    list_places,
    normalise_fused,
    normalise_patches,
    resize,
    resize_coarsely,
    split_patches,
)

# The published code uses this epsilon for every norm, and ignores the file's.
EPS = 1e-6
# Limits of the published processor, in squares of 28 x 28 pixels.
FEWEST, MOST = 4, 1280
FRAMES = 2  # that the convolution over patches takes
VIDEO = "<|video_pad|>"


@projector("qwen2vl_merger")
class Qwen2Vision(Tower):
    """Qwen2-VL's tower."""

    placeholder = "<|image_pad|>"
    around = ("<|vision_start|>", "<|vision_end|>")
    norm: ClassVar[type[nn.Norm]] = nn.LayerNorm
    activation: ClassVar[str] = "gelu_quick"
    # Limits on the pixels of a frame of a video, in squares of 28 x 28.
    frame_limits: ClassVar[tuple[int, int]] = (128 * 28**2, 768 * 28**2)

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
        self.frame_fewest = keys.uint("vision.video_min_pixels", self.frame_limits[0])
        self.frame_most = keys.uint("vision.video_max_pixels", self.frame_limits[1])
        self.statistics = colour_statistics(keys)
        self.post_norm = nn.weight("v.post_ln", "width", kind=self.norm(EPS), needed=True)
        super().__init__(backend)
        self.layers = self.fill_layers(lambda: EncoderLayer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to whole squares of patches, within the limits on pixels."""
        size = fit_pixels(source.shape[:2], self.step, self.fewest, self.most)
        split = self._reorder(split_patches(resize(source, *size), self.patch, merge=self.square))
        patches = normalise_patches(split, *self.statistics)
        rows, columns = patches.shape[:2]
        arrays = {"patches": patches, **self._arrays(rows, columns)}
        layout = [Rows(rows * columns, (1, rows, columns))]
        return make_media(arrays, layout, sources={"patches": split})

    def prepare_video(self, frames: Sequence[NDArray[Any]], fps: float) -> Media:
        """Resize frames to whole squares of patches, and pair them; the last may be repeated."""
        size = self.fit_video(frames[0].shape[:2], len(frames))
        # The published processor of videos resizes with torchvision, that of pictures with Pillow.
        patches = [
            split_patches(
                normalise_fused(resize_coarsely(frame, *size, Filter.BICUBIC), *self.statistics),
                self.patch,
                merge=self.square,
            )
            for frame in frames
        ]
        rows, columns = patches[0].shape[:2]
        patches += patches[-1:] * (-len(patches) % FRAMES)
        ordered = [self._reorder(each) for each in patches]
        arrays = {
            "patches": np.stack(ordered[::FRAMES]),
            "later": np.stack(ordered[1::FRAMES]),
            **self._arrays(rows, columns, len(patches) // FRAMES),
        }
        around = f"{self.around[0]}{VIDEO}{self.around[1]}"
        layout = self.lay_out((len(patches) // FRAMES, rows, columns), len(frames), fps)
        return make_media(arrays, layout, (around, VIDEO))

    def fit_video(self, size: Size, frames: int) -> Size:
        """Return the size of a video's frames."""
        return fit_pixels(size, self.step, self.frame_fewest, self.frame_most)

    def lay_out(self, grid: Grid, frames: int, fps: float) -> list[str | Rows]:
        """Return the layout of a video's rows in the prompt."""
        return [self.around[0], Rows(prod(grid), grid), self.around[1]]

    def _reorder(self, patches: NDArray[Value]) -> NDArray[Value]:
        """Return the squares of patches of a picture in the order of `order`."""
        rows, columns = patches.shape[:2]
        order = self.order(rows, columns)
        # The shape keeps rows and columns, since it is the key of a recorded graph.
        return patches.reshape(rows * columns, -1).take(order, 0).reshape(patches.shape)

    def _arrays(self, rows: int, columns: int, frames: int = 1) -> dict[str, NDArray[Any]]:
        """Return the graph inputs that depend on a picture's shape alone."""
        places = list_places(rows, columns, self.square).reshape(2, rows * columns, -1)
        ordered = places[:, self.order(rows, columns)].reshape(2, -1)
        return {
            "places": np.tile(ordered, (1, frames)),
            **self.tables(rows * self.square, columns * self.square),
        }

    def order(self, rows: int, columns: int) -> NDArray[np.intp]:
        """Return the raster index of each square, in the order in which the tower encodes them."""
        return np.arange(rows * columns)

    def tables(self, rows: int, columns: int) -> Mapping[str, NDArray[np.float32]]:
        """Return further graph inputs for a picture of `rows` by `columns` patches."""
        return {}

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, in raster order."""
        whole = inputs["patches"]
        *frames, rows, columns, _, _ = whole.shape
        first = whole.reshape(-1, self.patch_values)
        # The convolution takes two frames; a still picture is both.
        second = inputs.get("later", whole).reshape(-1, self.patch_values)
        x = self.patches(first, self.second_frame.linear(second, None))
        x = self.add_positions(x, inputs)
        rotate = rotation_at(inputs["places"], self.sizes.head)
        return self.run_layers(x, rotate, (prod(frames), rows, columns))

    def add_positions(self, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Add position embeddings to the patches, if the tower has any."""
        return x

    def run_layers(self, x: Tensor, rotate: Rotate, grid: Grid) -> Tensor:
        """Run the layers over (patches, width), and join squares: (frames · rows · columns, cols).

        Parameters
        ----------
        grid : (int, int, int)
            Pairs of frames, and rows and columns of squares.
        """
        frames = self.frames(grid)
        for layer in self.layers:
            x = layer(x, rotate, frames)
        return self.merge(x)

    def frames(self, grid: Grid) -> list[int]:
        """Return the patches of each pair of frames."""
        return [grid[1] * grid[2] * self.square**2] * grid[0]

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
        self.pace = keys.uint("vision.tokens_per_second", 2)

    def order(self, rows: int, columns: int) -> NDArray[np.intp]:
        """Return the raster index of each square, window by window."""
        return split_windows(rows, columns, self.window)[0]

    def lay_out(self, grid: Grid, frames: int, fps: float) -> list[str | Rows]:
        """Return the layout of a video's rows, with positions in time by seconds."""
        step = float(np.float32(self.pace) * np.float32(FRAMES / fps))
        return [self.around[0], Rows(prod(grid), grid, step), self.around[1]]

    def run_layers(self, x: Tensor, rotate: Rotate, grid: Grid) -> Tensor:
        """Run the layers over patches in window order; the joined squares are in raster order."""
        order, runs = split_windows(*grid[1:], self.window, grid[0])
        lengths = [length * self.square**2 for length in runs]
        frames = self.frames(grid)
        for i, layer in enumerate(self.layers):
            x = layer(x, rotate, frames if i in self.whole else lengths)
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
    # For all frames of a video together.
    frame_limits = (4 * 32**2, 24576 * 32**2)

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
        made = resize_table(table, inputs["by_row"], inputs["by_column"], self.square)
        # The frames of a video have the same ones.
        return x.reshape(-1, *made.shape).add(made).reshape(*x.shape)

    def fit_video(self, size: Size, frames: int) -> Size:
        """Return the size of a video's frames, limited by the pixels of all."""
        if frames < FRAMES:
            raise OptionError(f"video: {frames} frame, this model needs at least {FRAMES}")
        return fit_frames(size, self.step, self.frame_fewest, self.frame_most, frames)

    def lay_out(self, grid: Grid, frames: int, fps: float) -> list[str | Rows]:
        """Return the layout of a video's rows: the time of each pair of frames, and its rows."""
        times = [i / fps for i in range(frames)]
        times += times[-1:] * (-frames % FRAMES)
        made: list[str | Rows] = []
        for pair in range(grid[0]):
            middle = (times[FRAMES * pair] + times[FRAMES * pair + FRAMES - 1]) / 2
            made += [
                f"<{middle:.1f} seconds>{self.around[0]}",
                Rows(prod(grid[1:]), (1, *grid[1:])),
            ]
            made.append(self.around[1])
        return made

    def run_layers(self, x: Tensor, rotate: Rotate, grid: Grid) -> Tensor:
        """Run the layers, and concatenate the joined squares of the last and some other layers."""
        parts: list[Tensor] = []
        frames = self.frames(grid)
        for i, layer in enumerate(self.layers):
            x = layer(x, rotate, frames)
            if i in self.mergers:
                parts.append(self.mergers[i](x))
        return _put_side_by_side([self.merge(x), *parts])


def _put_side_by_side(parts: Sequence[Tensor]) -> Tensor:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.concat(part, axis=1)
    return whole
