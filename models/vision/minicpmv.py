"""MiniCPM-V's tower: Yao et al. 2024, "MiniCPM-V: A GPT-4V Level MLLM on Your Phone", §3.

SigLIP on the whole picture and on slices of it, which keep its proportions. A resampler, one layer
of cross attention from learned queries, makes the same number of rows of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import NUMBER_MARK, Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes, count_rows
from wgpu_backend.nn.vision.processing import (
    Bytes,
    F32s,
    Size,
    colour_statistics,
    normalise,
    require_even,
    resize,
    split_patches,
    split_tiles,
)

EPS = 1e-6
# Columns of a head of the resampler.
HEAD = 128


class Resampler(nn.Module):
    """Cross attention from learned queries to patches (§3.1), with norms before and after it."""

    queries: Tensor = nn.weight("query", "count", "width")
    map_patches: nn.Linear = nn.weight("kv", "width", "inner")
    query_norm: nn.LayerNorm
    patch_norm: nn.LayerNorm
    last_norm: nn.LayerNorm
    q: nn.Linear = nn.weight("attn.q", "width", "width")
    k: nn.Linear = nn.weight("attn.k", "width", "width")
    v: nn.Linear = nn.weight("attn.v", "width", "width")
    out: nn.Linear = nn.weight("attn.out", "width", "width")
    project: nn.Linear = nn.weight("proj", "width", "width")

    def __init__(self, width: int, inner: int, count: int) -> None:
        self.width, self.inner, self.count = width, inner, count
        self.heads = max(width // HEAD, 1)
        self.query_norm = nn.weight("ln_q", "width", kind=nn.LayerNorm(EPS))
        self.patch_norm = nn.weight("ln_kv", "width", kind=nn.LayerNorm(EPS))
        self.last_norm = nn.weight("ln_post", "width", kind=nn.LayerNorm(EPS))

    def __call__(self, x: Tensor, places: Tensor, slices: int) -> Tensor:
        """Map slices of the same shape to rows: (slices · count, width).

        Parameters
        ----------
        x : (slices · patches, inner)
        places : (patches, width)
            Position embeddings, which are added for keys only.
        """
        patches = places.shape[0]
        values = self.patch_norm(self.map_patches(x))
        keys = values.reshape(slices, patches, self.width).add(places)
        k = self.k(keys.reshape(slices * patches, self.width))
        # Every slice has the same queries.
        numbers = np.tile(np.arange(self.count, dtype=np.int32), slices)
        q = self.q(self.query_norm(self.queries.rows(x.context.from_numpy(numbers))))
        q, k, v = (
            each.reshape(slices, -1, self.heads, self.width // self.heads)
            for each in (q, k, self.v(values))
        )
        scale = (self.width // self.heads) ** -0.5
        y = q.scaled_dot_product_attention(k, v, scale=scale).contiguous()
        y = self.out(y.reshape(slices * self.count, self.width))
        return self.project(self.last_norm(y))


@projector("resampler")
class MiniCPMVision(Tower):
    """SigLIP for slices of any shape, and a resampler."""

    placeholder = "(<image>./</image>)"
    # The published code puts each part of a message on a line.
    around = ("", "\n")

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    positions: Tensor = nn.weight("v.position_embd.weight")
    post_norm: nn.LayerNorm

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        sizes = LayerSizes.from_config(keys)
        self.sizes, self.width = sizes, sizes.width
        # The file's key is 0.
        self.cols = count_rows(backend, "resampler.proj.weight") or 0
        self.count = count_rows(backend, "resampler.query") or 0
        self.version = keys.uint("minicpmv_version", 2)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.edge = keys.uint("vision.scale_resolution", 448, at_least=self.patch)
        self.most = keys.uint("vision.max_slice_nums", 9, at_least=1)
        self.patch_values = 3 * self.patch**2
        self.statistics = colour_statistics(keys)
        self.post_norm = nn.weight("v.post_ln", "width", kind=nn.LayerNorm(sizes.eps))
        super().__init__(backend)
        self.side = math.isqrt(self.positions.shape[0])
        if self.positions.shape != (self.side**2, self.width):
            raise self.fail(
                f"tensor v.position_embd.weight is {self.positions.shape}, needs (side², "
                f"{self.width})"
            )
        first = backend.file.tensors.get("v.blk.0.ffn_down.weight")
        self.is_swapped = first is not None and first.shape == (sizes.inner, sizes.width)
        self.layers = self.fill_layers(self._make_layer, sizes.count)
        self.resampler = Resampler(self.cols, self.width, self.count)
        self.fill(self.resampler, "resampler.")

    def _make_layer(self) -> EncoderLayer:
        """Make a layer; llama.cpp's converter swaps the names of its two last matrices."""
        layer = EncoderLayer(self.sizes)
        layer.feed_forward.swapped = self.is_swapped
        return layer

    # The slices of a picture (§3.2).

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to about `edge`² pixels, and a large one also to a grid of slices."""
        require_even(source.shape[:2])
        height, width = source.shape[:2]
        grid = self.find_grid((height, width))
        # A picture without slices may also be enlarged.
        size = self.fit((height, width), enlarge=grid is None)
        arrays = self._arrays("whole", [resize(source, *size)])
        if grid is not None:
            near = [
                self._round(side, part) for side, part in zip((height, width), grid, strict=True)
            ]
            each = self.fit((near[0] / grid[0], near[1] / grid[1]), enlarge=True)
            refined = resize(source, each[0] * grid[0], each[1] * grid[1])
            arrays |= self._arrays("slices", split_tiles(refined, grid))
        return make_media(arrays, self.lay_out(grid))

    def find_grid(self, size: Size) -> Size | None:
        """Return the grid with the nearest proportions; None for a picture that needs no slices."""
        height, width = size
        count = min(math.ceil(width * height / self.edge**2), self.most)
        if count <= 1:
            return None
        best, found = float("inf"), (1, 1)
        wanted = math.log(width / height)
        for slices in (count - 1, count, count + 1):
            if slices == 1 or slices > self.most:
                continue
            for columns in range(1, slices + 1):
                if slices % columns:
                    continue
                apart = abs(wanted - math.log(columns / (slices // columns)))
                if apart < best:
                    best, found = apart, (slices // columns, columns)
        return found

    def fit(self, size: tuple[float, float], *, enlarge: bool) -> Size:
        """Return a size of about `edge`² pixels in whole patches; enlarge only if `enlarge`."""
        height, width = size
        if width * height > self.edge**2 or enlarge:
            ratio = width / height
            height = int(self.edge / math.sqrt(ratio))
            width = int(height * ratio)
        return self._round(height, self.patch), self._round(width, self.patch)

    @staticmethod
    def _round(length: float, part: int) -> int:
        return max(round(length / part) * part, part)

    def lay_out(self, grid: Size | None) -> list[str | Rows]:
        """Return the layout: the whole picture, then slices, a line for each row of them."""
        is_first = self.version == 2
        made: list[str | Rows] = [] if is_first else [f"<image_id>{NUMBER_MARK}</image_id>"]
        made += ["<image>", Rows(self.count), "</image>"]
        if grid is None:
            return made
        begin, end = ("<image>", "</image>") if is_first else ("<slice>", "</slice>")
        made += ["<slice>"] if is_first else []
        for row in range(grid[0]):
            made += ["\n"] if row else []
            made += [begin, Rows(self.count), end] * grid[1]
        return [*made, "</slice>"] if is_first else made

    # The graph.

    def _arrays(self, name: str, pictures: list[Bytes]) -> dict[str, NDArray[Any]]:
        """Return the patches of pictures of one size, and the positions of their patches."""
        parts = [split_patches(normalise(each, *self.statistics), self.patch) for each in pictures]
        rows, columns = parts[0].shape[:2]
        count = rows * columns
        places = self._bucket(rows)[:, None] * self.side + self._bucket(columns)
        return {
            name: np.stack(parts).reshape(len(parts), count, self.patch_values),
            f"{name}.places": places.reshape(-1).astype(np.int32),
            f"{name}.waves": self._waves(rows, columns),
        }

    def _bucket(self, count: int) -> NDArray[np.intp]:
        """Return the rows of the position table for `count` patches along a side."""
        # In f32, as in the published code: its rounding decides where places meet an edge.
        edges = (np.arange(1, self.side) * (1 / self.side)).astype(np.float32)
        places = np.arange(count, dtype=np.float32) * (np.float32(1) / np.float32(count))
        return np.searchsorted(edges, places, "right")

    def _waves(self, rows: int, columns: int) -> F32s:
        """Return sines and cosines of the column, then of the row: (patches, cols)."""
        quarter = self.cols // 4
        exponents = np.arange(quarter, dtype=np.float32) / np.float32(quarter)
        frequencies = np.float32(1) / np.float32(10000) ** exponents
        y, x = np.indices((rows, columns), np.float32).reshape(2, -1, 1) * frequencies
        return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], 1)

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of the whole picture, then those of the slices."""
        rows = self._encode(inputs, "whole")
        if "slices" not in inputs:
            return rows
        return rows.concat(self._encode(inputs, "slices"), axis=0)

    def _encode(self, inputs: Mapping[str, Tensor], name: str) -> Tensor:
        slices, count, _ = inputs[name].shape
        x = self.patches(inputs[name].reshape(slices * count, self.patch_values))
        x = x.reshape(slices, count, self.width).add(self.positions.rows(inputs[f"{name}.places"]))
        x = x.reshape(slices * count, self.width)
        for layer in self.layers:
            x = layer(x, None, [count] * slices)
        return self.resampler(self.post_norm(x), inputs[f"{name}.waves"], slices)
