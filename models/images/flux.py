"""The transformer of FLUX.1: Black Forest Labs 2024.

Blocks of two streams as in Esser et al. 2024, §4, then blocks of one, in which attention and
feed-forward are parallel (Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion
Parameters", §2).

Latents are packed: a token is a square of 2 x 2 latents, the channel as the slowest axis.
"""

from __future__ import annotations

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

from .axial_rope import Table, axial_rope, grid_places
from .blocks import FeedForward, TimeEmbedding
from .joint_attention import EPS, JointBlock, attend_rotated, split_heads
from .modulation import ModulatedNorm, Modulation, make_plain_norm, modulate
from .networks import TokenDenoiser
from .original_names import FLUX

# Width of a timestep's sinusoids.
SINUSOIDS = 256
THETA = 10000.0


class DoubleBlock(JointBlock):
    """Attention of text and image to both, and a feed-forward network for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.norm1 = Modulation(width, 6)
        self.norm1_context = Modulation(width, 6)
        self.ff = FeedForward(width, "gelu-approximate")
        self.ff_context = FeedForward(width, "gelu-approximate")

    def __call__(
        self, x: wx.Array, text: wx.Array, time: wx.Array, rope: wx.Array
    ) -> tuple[wx.Array, wx.Array]:
        """Map image and text, each (n, tokens, width), to the same shapes."""
        vectors = self.norm1(time), self.norm1_context(time)
        return self.apply_both((x, text), vectors, (self.ff, self.ff_context), rope)


class SingleAttention(nn.Module):
    """Attention without an output projection, which the block has."""

    def __init__(self, width: int, heads: int) -> None:
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.norm_q, self.norm_k = (nn.RMSNorm(width // heads, EPS) for _ in range(2))
        self._heads = heads

    def __call__(self, x: wx.Array, rope: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        q, k, v = (split_heads(p(x), self._heads) for p in (self.to_q, self.to_k, self.to_v))
        return attend_rotated(self.norm_q(q), self.norm_k(k), v, rope)


class SingleBlock(nn.Module):
    """Attention parallel to feed-forward, over text and image as one sequence."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm = Modulation(width, 3)
        self.proj_mlp = nn.Linear(width, 4 * width)
        # One matrix for attention's output and the feed-forward network's, next to each other.
        self.proj_out = nn.Linear(5 * width, width)
        self.attn = SingleAttention(width, heads)
        self._norm = make_plain_norm(width)

    def __call__(self, x: wx.Array, time: wx.Array, rope: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        shift, scale, gate = self.norm(time)
        y = modulate(self._norm(x), shift, scale)
        inner = nn.gelu_approx(self.proj_mlp(y))
        return x + gate * self.proj_out(wx.concat([self.attn(y, rope), inner], axis=-1))


class TimeAndText(nn.Module):
    """The embedding of timestep, guidance and pooled text as one vector."""

    def __init__(self, width: int, pooled: int, guided: bool) -> None:
        self.timestep_embedder = TimeEmbedding(SINUSOIDS, width)
        self.guidance_embedder = TimeEmbedding(SINUSOIDS, width) if guided else None
        self.text_embedder = TimeEmbedding(pooled, width)

    def __call__(self, timestep: wx.Array, guidance: wx.Array | None, pooled: wx.Array) -> wx.Array:
        """Map two (n,) and (n, pooled) to (n, width)."""
        y = self.timestep_embedder(_waves(timestep)) + self.text_embedder(pooled)
        if self.guidance_embedder is None or guidance is None:
            return y
        return y + self.guidance_embedder(_waves(guidance))


def _waves(x: wx.Array) -> wx.Array:
    # Training counted 1,000 steps; a call has the share of noise.
    return nn.timestep_embedding(x * 1000.0, SINUSOIDS, True, 0)


@nn.published("FluxTransformer2DModel")
class FluxTransformer(TokenDenoiser):
    """FLUX.1: blocks of two streams, then blocks of one."""

    originals = FLUX

    def __init__(self, settings: Settings) -> None:
        heads = settings.uint("num_attention_heads", default=24)
        width = heads * settings.uint("attention_head_dim", default=128)
        if settings.uint("patch_size", default=1) != 1:
            raise settings.error("patch_size", f"is {settings.uint('patch_size')}, known is 1")
        self.channels = settings.uint("in_channels", default=64)
        self.patch = 2
        self.guided = settings.flag("guidance_embeds", default=False)
        pooled = settings.uint("pooled_projection_dim", default=768)
        self.time_text_embed = TimeAndText(width, pooled, self.guided)
        self.context_embedder = nn.Linear(settings.uint("joint_attention_dim", default=4096), width)
        self.x_embedder = nn.Linear(self.channels, width)
        self.transformer_blocks = [
            DoubleBlock(width, heads) for _ in range(settings.uint("num_layers", default=19))
        ]
        self.single_transformer_blocks = [
            SingleBlock(width, heads) for _ in range(settings.uint("num_single_layers", default=38))
        ]
        self.norm_out = ModulatedNorm(width)
        self.proj_out = nn.Linear(width, settings.uint("out_channels", default=self.channels))
        self._widths = settings.uints("axes_dims_rope", default=[16, 56, 56])

    def rope(self, grid: tuple[int, int], text_tokens: int) -> Table:
        """Return the rotations of positions; all tokens of a text are at the origin."""
        # The order of a text is in the states of its encoder.
        text = np.zeros((text_tokens, 3), np.int64)
        places = np.concatenate([text, grid_places((0, 0, 0), (1, *grid))])
        return axial_rope(places, self._widths, THETA)

    def __call__(
        self,
        x: wx.Array,
        timestep: wx.Array,
        text: wx.Array,
        pooled: wx.Array,
        rope: wx.Array,
        guidance: wx.Array | None = None,
    ) -> wx.Array:
        """Predict velocities; `pooled` is the pooled text, (n, width)."""
        time = self.time_text_embed(timestep, guidance, pooled)
        x, text = self.x_embedder(x), self.context_embedder(text)
        for block in self.transformer_blocks:
            x, text = block(x, text, time, rope)
        count = text.shape[1]
        x = wx.concat([text, x], axis=1)
        for block in self.single_transformer_blocks:
            x = block(x, time, rope)
        # The text is dropped: only the image's tokens have a velocity.
        return self.proj_out(self.norm_out(x[:, count:], time))
