"""Gemma 4's tower: Gemma Team 2026, "Gemma 4".

A vision transformer for pictures of any proportions, with position embeddings and RoPE by column
and row. Squares of patches are averaged and projected.
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
from wgpu_backend.nn.vision.blocks import ClippedLinear, LayerSizes, Rotate, attend
from wgpu_backend.nn.vision.processing import (
    fit_budget,
    list_places,
    resize,
    scale_unit,
    split_patches,
)

# Widths of E2B and E4B, whose picture rows have causal attention. The file has no key for that.
_CAUSAL_COLS = (1536, 2560)


class Layer(nn.Module):
    """A layer with norms before and after attention and feed-forward."""

    q: ClippedLinear = nn.weight("attn_q", "width", "width")
    k: ClippedLinear = nn.weight("attn_k", "width", "width")
    v: ClippedLinear = nn.weight("attn_v", "width", "width")
    out: ClippedLinear = nn.weight("attn_out", "width", "width")
    gate: ClippedLinear = nn.weight("ffn_gate", "inner", "width")
    up: ClippedLinear = nn.weight("ffn_up", "inner", "width")
    down: ClippedLinear = nn.weight("ffn_down", "width", "inner")
    q_norm: nn.RMSNorm
    k_norm: nn.RMSNorm

    def __init__(self, sizes: LayerSizes) -> None:
        self.sizes, self.width, self.inner, self.head = sizes, sizes.width, sizes.inner, sizes.head
        self.q_norm = nn.weight("attn_q_norm", "head", kind=nn.RMSNorm(sizes.eps))
        self.k_norm = nn.weight("attn_k_norm", "head", kind=nn.RMSNorm(sizes.eps))
        self.norm = nn.weight("ln1", "width", kind=nn.RMSNorm(sizes.eps), needed=True)
        self.after = nn.weight("attn_post_norm", "width", kind=nn.RMSNorm(sizes.eps), needed=True)
        self.ffn_norm = nn.weight("ln2", "width", kind=nn.RMSNorm(sizes.eps), needed=True)
        self.ffn_after = nn.weight(
            "ffn_post_norm", "width", kind=nn.RMSNorm(sizes.eps), needed=True
        )

    def __call__(self, x: Tensor, rotate: Rotate) -> Tensor:
        """Map (patches, width) to the same shape."""
        x = x.add(self.after(self._attend(self.norm(x), rotate)))
        y = self.ffn_norm(x)
        return x.add(self.ffn_after(self.down(self.gate(y).geglu(self.up(y)))))

    def _attend(self, x: Tensor, rotate: Rotate) -> Tensor:
        shape = (x.shape[0], self.sizes.heads, self.head)
        q, k, v = (part(x).reshape(*shape) for part in (self.q, self.k, self.v))
        v = v.rms_norm(None, eps=self.sizes.eps)
        q, k = rotate(self.q_norm(q)), rotate(self.k_norm(k))
        # Queries are normalised, so that scores are not scaled.
        return self.out(attend(q, k, v, scale=1.0))


@projector("gemma4v")
class Gemma4Vision(Tower):
    """A vision transformer, an average over squares and a matrix."""

    placeholder = "<|image|>"

    patches: nn.Linear = nn.weight("v.patch_embd", "width", "patch_values")
    positions: Tensor = nn.weight("v.position_embd.weight")
    std_bias: Tensor | None = nn.weight("v.std_bias", "width")
    std_scale: Tensor | None = nn.weight("v.std_scale", "width")
    projection: ClippedLinear = nn.weight("mm.input_projection", "cols", "width")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        # The file has no key for the activation.
        sizes = LayerSizes.from_config(keys, activation="gelu", norm=nn.RMSNorm)
        self.sizes, self.width = sizes, sizes.width
        self.cols = keys.uint("vision.projection_dim", at_least=1)
        self.patch = keys.uint("vision.patch_size", at_least=1)
        self.square = keys.uint("vision.projector.scale_factor", 3, at_least=1)
        self.patch_values = 3 * self.patch**2
        area = (self.patch * self.square) ** 2
        self.most = keys.uint("vision.image_max_pixels", 280 * area, at_least=area) // area
        self.base = keys.float("vision.rope.freq_base", 100.0)
        is_causal = keys.bool("vision.is_causal", self.cols in _CAUSAL_COLS)
        self.is_causal = is_causal  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(backend)
        shape = self.positions.shape
        if len(shape) != 3 or (shape[0], shape[2]) != (2, self.width):
            raise self.fail(
                f"tensor v.position_embd.weight is {shape}, needs (2, places, {self.width})"
            )
        self.layers = self.fill_layers(lambda: Layer(sizes), sizes.count)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to the most whole squares of patches that are allowed."""
        size = fit_budget(source.shape[:2], self.patch, self.square, self.most)
        # The published code subtracts 1/2 in f32, then doubles.
        values = (scale_unit(resize(source, *size)) - np.float32(0.5)) * np.float32(2)
        patches = split_patches(values, self.patch, merge=self.square)
        rows, columns = patches.shape[:2]
        arrays = {
            "patches": patches.reshape(-1, self.patch_values),
            "places": list_places(rows, columns, self.square)[::-1].copy(),
        }
        return make_media(arrays, ["<|image>", Rows(rows * columns), "<image|>"])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for each square of patches, in raster order."""
        columns, rows = (inputs["places"].slice(0, i, i + 1).reshape(-1) for i in range(2))
        tables = self.positions.reshape(-1, self.width)
        # In the flat table, the rows' embeddings follow those of the columns.
        added = tables.rows(columns).add(tables.rows(rows + self.positions.shape[1]))
        x = self.patches(inputs["patches"]).add(added)
        rotate = self._rotation(inputs["places"])
        for layer in self.layers:
            x = layer(x, rotate)
        count = x.shape[0] // self.square**2
        squares = x.reshape(count, self.square**2, self.width).permute(0, 2, 1).contiguous()
        x = squares.mean(-1).reshape(count, self.width).scale(factor=self.width**0.5)
        if self.std_bias is not None and self.std_scale is not None:
            x = x.sub(self.std_bias).mul(self.std_scale)
        return self.projection(x.rms_norm(None, eps=self.sizes.eps))

    def _rotation(self, places: Tensor) -> Rotate:
        """Return RoPE that rotates the first half of each head by column, the second by row."""
        half = self.sizes.head // 2
        exponents = np.arange(0, half, 2, dtype=np.float32) / np.float32(half)
        context = places.context
        frequencies = context.from_numpy(np.float32(1) / np.float32(self.base) ** exponents)
        tables = [
            places.rope_table_axes(
                frequencies, context.from_numpy(np.full(len(exponents), axis, np.int32)), count=2
            )
            for axis in range(2)
        ]

        def rotate(x: Tensor) -> Tensor:
            parts = [x.slice(-1, i * half, (i + 1) * half).contiguous() for i in range(2)]
            first, second = (part.rope(table) for part, table in zip(parts, tables, strict=True))
            return first.concat(second, axis=2)

        return rotate
