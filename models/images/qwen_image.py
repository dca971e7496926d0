"""The transformer of Qwen-Image: Wu et al. 2025, "Qwen-Image Technical Report".

Blocks of two streams as in Esser et al. 2024, §4. Positions are centred on the image's middle, and
the text follows on the diagonal.

Latents are packed: a token is a square of 2 x 2 latents, the channel as the slowest axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

from .axial_rope import Table, axial_rope, grid_places
from .blocks import FeedForward, TimeEmbedding
from .joint_attention import JointBlock
from .modulation import ModulatedNorm
from .networks import TokenDenoiser

# Width of a timestep's sinusoids.
SINUSOIDS = 256
THETA = 10000.0
# Epsilon of the norm of the text.
TEXT_EPS = 1e-6
_UNKNOWN = ("guidance_embeds", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope")


class Block(JointBlock):
    """Attention of text and image to both, and a feed-forward network for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.img_mod = [nn.SiLU(), nn.Linear(width, 6 * width)]
        self.txt_mod = [nn.SiLU(), nn.Linear(width, 6 * width)]
        self.img_mlp = FeedForward(width, "gelu-approximate")
        self.txt_mlp = FeedForward(width, "gelu-approximate")

    def __call__(
        self, x: wx.Array, text: wx.Array, time: wx.Array, rope: wx.Array
    ) -> tuple[wx.Array, wx.Array]:
        """Map image and text, each (n, tokens, width), to the same shapes."""
        vectors = _vectors(self.img_mod, time), _vectors(self.txt_mod, time)
        return self.apply_both((x, text), vectors, (self.img_mlp, self.txt_mlp), rope)


def _vectors(modulation: Sequence[nn.SiLU | nn.Linear], time: wx.Array) -> list[wx.Array]:
    """Return six vectors, (n, 1, width) each, of timesteps (n, width)."""
    for part in modulation:
        time = part(time)
    return time[:, None].split(6, axis=-1)


class Time(nn.Module):
    """The embedding of the timestep."""

    def __init__(self, width: int) -> None:
        self.timestep_embedder = TimeEmbedding(SINUSOIDS, width)

    def __call__(self, timestep: wx.Array) -> wx.Array:
        """Map (n,) to (n, width)."""
        # Scaled after the frequencies, as in diffusers: in f32 the order changes the last bits.
        waves = nn.timestep_embedding(timestep, SINUSOIDS, True, 0, scale=1000)
        return self.timestep_embedder(waves)


@nn.published("QwenImageTransformer2DModel")
class QwenImageTransformer(TokenDenoiser):
    """Qwen-Image: blocks of two streams."""

    def __init__(self, settings: Settings) -> None:
        for name in _UNKNOWN:
            if settings.flag(name, default=False):
                raise settings.error(name, "is true, needs false")
        heads = settings.uint("num_attention_heads", default=24)
        width = heads * settings.uint("attention_head_dim", default=128)
        text = settings.uint("joint_attention_dim", default=3584)
        self.channels = settings.uint("in_channels", default=64)
        self.patch = 2
        self.time_text_embed = Time(width)
        self.txt_norm = nn.RMSNorm(text, TEXT_EPS)
        self.img_in = nn.Linear(self.channels, width)
        self.txt_in = nn.Linear(text, width)
        layers = settings.uint("num_layers", default=60)
        self.transformer_blocks = [Block(width, heads) for _ in range(layers)]
        self.norm_out = ModulatedNorm(width)
        outputs = settings.uint("out_channels", default=16)
        self.proj_out = nn.Linear(width, settings.uint("patch_size", default=2) ** 2 * outputs)
        self._widths = settings.uints("axes_dims_rope", default=[16, 56, 56])

    def rope(self, grids: Sequence[tuple[int, int]], text_tokens: int) -> Table:
        """Return the rotations of positions: images are centred at the origin, a text follows."""
        pictures = [
            grid_places((i, rows // 2 - rows, columns // 2 - columns), (1, rows, columns))
            for i, (rows, columns) in enumerate(grids)
        ]
        # After the last row or column of the largest image, so that no position is used twice.
        start = max(max(grid) // 2 for grid in grids)
        text = np.repeat(start + np.arange(text_tokens)[:, None], 3, 1)
        return axial_rope(np.concatenate([text, *pictures]), self._widths, THETA)

    def __call__(self, x: wx.Array, timestep: wx.Array, text: wx.Array, rope: wx.Array) -> wx.Array:
        """Predict velocities."""
        time = self.time_text_embed(timestep)
        x, text = self.img_in(x), self.txt_in(self.txt_norm(text))
        for block in self.transformer_blocks:
            x, text = block(x, text, time, rope)
        return self.proj_out(self.norm_out(x, time))
