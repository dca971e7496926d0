"""The transformer of FLUX.2: Black Forest Labs 2025.

It differs from FLUX.1's: all blocks have the same shifts, scales and gates, feed-forward networks
are gated (Shazeer 2020, "GLU Variants Improve Transformer"), a block of one stream has one linear
layer at its input and one at its output, and there are no biases.

A token is a square of 2 x 2 latents. Positions have four axes: image, row, column, text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

from .axial_rope import Table, axial_rope, grid_places
from .joint_attention import EPS, JointBlock, attend_rotated, split_heads
from .modulation import ModulatedNorm, Modulation, make_plain_norm, modulate
from .networks import TokenDenoiser
from .original_names import FLUX2

# Distance of images on the first axis.
APART = 10


class FeedForward(nn.Module):
    """A gated feed-forward network; gate and input are one linear layer."""

    def __init__(self, width: int, inner: int) -> None:
        self.linear_in = nn.Linear(width, 2 * inner, bias=False)
        self.linear_out = nn.Linear(inner, width, bias=False)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        return self.linear_out(gate_halves(self.linear_in(x)))


def gate_halves(x: wx.Array) -> wx.Array:
    """Multiply the second half of rows by the SiLU of the first half."""
    gate, values = x.split(2, axis=-1)
    return nn.silu(gate) * values


class DoubleBlock(JointBlock):
    """Attention of text and image to both, and a feed-forward network for each."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__(width, heads, bias=False)
        self.ff = FeedForward(width, inner)
        self.ff_context = FeedForward(width, inner)

    def __call__(
        self,
        x: wx.Array,
        text: wx.Array,
        vectors: list[wx.Array],
        text_vectors: list[wx.Array],
        rope: wx.Array,
    ) -> tuple[wx.Array, wx.Array]:
        """Map image and text, each (n, tokens, width), to the same shapes."""
        feeds = self.ff, self.ff_context
        return self.apply_both((x, text), (vectors, text_vectors), feeds, rope)


class ParallelAttention(nn.Module):
    """Attention parallel to feed-forward, with one linear layer before both and one after."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        self.to_qkv_mlp_proj = nn.Linear(width, 3 * width + 2 * inner, bias=False)
        self.to_out = nn.Linear(width + inner, width, bias=False)
        self.norm_q, self.norm_k = (nn.RMSNorm(width // heads, EPS) for _ in range(2))
        self._heads, self._width = heads, width

    def __call__(self, x: wx.Array, rope: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        *parts, inner = self.to_qkv_mlp_proj(x).split([i * self._width for i in (1, 2, 3)], axis=-1)
        q, k, v = (split_heads(p, self._heads) for p in parts)
        y = attend_rotated(self.norm_q(q), self.norm_k(k), v, rope)
        return self.to_out(wx.concat([y, gate_halves(inner)], axis=-1))


class SingleBlock(nn.Module):
    """A block over text and image as one sequence."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        self.attn = ParallelAttention(width, heads, inner)
        self._norm = make_plain_norm(width)

    def __call__(self, x: wx.Array, vectors: list[wx.Array], rope: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        shift, scale, gate = vectors
        return x + gate * self.attn(modulate(self._norm(x), shift, scale), rope)


class TimeEmbedding(nn.Module):
    """Two linear layers with SiLU between them."""

    def __init__(self, inputs: int, width: int) -> None:
        self.linear_1 = nn.Linear(inputs, width, bias=False)
        self.linear_2 = nn.Linear(width, width, bias=False)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, inputs) to (n, width)."""
        return self.linear_2(nn.silu(self.linear_1(x)))


class TimeAndGuidance(nn.Module):
    """The embedding of timestep and guidance as one vector."""

    def __init__(self, inputs: int, width: int, guided: bool) -> None:
        self.timestep_embedder = TimeEmbedding(inputs, width)
        self.guidance_embedder = TimeEmbedding(inputs, width) if guided else None
        self._inputs = inputs

    def __call__(self, timestep: wx.Array, guidance: wx.Array | None) -> wx.Array:
        """Map two (n,) to (n, width)."""
        y = self.timestep_embedder(self._waves(timestep))
        if self.guidance_embedder is None or guidance is None:
            return y
        return y + self.guidance_embedder(self._waves(guidance))

    def _waves(self, x: wx.Array) -> wx.Array:
        return nn.timestep_embedding(x * 1000.0, self._inputs, True, 0)


@nn.published("Flux2Transformer2DModel")
class Flux2Transformer(TokenDenoiser):
    """FLUX.2: blocks of two streams, then of one; all share their modulation."""

    originals = FLUX2

    def __init__(self, settings: Settings) -> None:
        heads = settings.uint("num_attention_heads", default=48)
        width = heads * settings.uint("attention_head_dim", default=128)
        inner = int(width * settings.number("mlp_ratio", default=3.0))
        if settings.uint("patch_size", default=1) != 1:
            raise settings.error("patch_size", f"is {settings.uint('patch_size')}, known is 1")
        self.channels = settings.uint("in_channels", default=128)
        # The autoencoder already makes squares, so that any size of latents will do.
        self.patch = 1
        self.guided = settings.flag("guidance_embeds", default=True)
        waves = settings.uint("timestep_guidance_channels", default=256)
        self.time_guidance_embed = TimeAndGuidance(waves, width, self.guided)
        self.double_stream_modulation_img = Modulation(width, 6, bias=False)
        self.double_stream_modulation_txt = Modulation(width, 6, bias=False)
        self.single_stream_modulation = Modulation(width, 3, bias=False)
        self.x_embedder = nn.Linear(self.channels, width, bias=False)
        self.context_embedder = nn.Linear(
            settings.uint("joint_attention_dim", default=15360), width, bias=False
        )
        self.transformer_blocks = [
            DoubleBlock(width, heads, inner) for _ in range(settings.uint("num_layers", default=8))
        ]
        self.single_transformer_blocks = [
            SingleBlock(width, heads, inner)
            for _ in range(settings.uint("num_single_layers", default=48))
        ]
        self.norm_out = ModulatedNorm(width, bias=False)
        outputs = settings.uint("out_channels", default=self.channels)
        self.proj_out = nn.Linear(width, outputs, bias=False)
        self._widths = settings.uints("axes_dims_rope", default=[32, 32, 32, 32])
        self._theta = settings.number("rope_theta", default=2000)

    def rope(self, grids: Sequence[tuple[int, int]], text_tokens: int) -> Table:
        """Return the rotations of positions: the first axis is of images, the last of text."""
        text = grid_places((0, 0, 0, 0), (1, 1, 1, text_tokens))
        pictures = [
            grid_places((APART * i, 0, 0, 0), (1, rows, columns, 1))
            for i, (rows, columns) in enumerate(grids)
        ]
        return axial_rope(np.concatenate([text, *pictures]), self._widths, self._theta)

    def __call__(
        self,
        x: wx.Array,
        timestep: wx.Array,
        text: wx.Array,
        rope: wx.Array,
        guidance: wx.Array | None = None,
    ) -> wx.Array:
        """Predict velocities."""
        time = self.time_guidance_embed(timestep, guidance)
        vectors = self.double_stream_modulation_img(time)
        text_vectors = self.double_stream_modulation_txt(time)
        x, text = self.x_embedder(x), self.context_embedder(text)
        for block in self.transformer_blocks:
            x, text = block(x, text, vectors, text_vectors, rope)
        count = text.shape[1]
        x = wx.concat([text, x], axis=1)
        single = self.single_stream_modulation(time)
        for block in self.single_transformer_blocks:
            x = block(x, single, rope)
        # The text is dropped: only the image's tokens have a velocity.
        return self.proj_out(self.norm_out(x[:, count:], time))
