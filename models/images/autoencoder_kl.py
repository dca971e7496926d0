"""The autoencoder of latent diffusion: Rombach et al. 2022, §3.1 and appendix G.

Images are (n, height, width, 3) from -1 to 1, latents (n, height / 8, width / 8, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

from .blocks import Attention, Downsample, ResnetBlock, Upsample
from .networks import Autoencoder

# Epsilon of all norms.
EPS = 1e-6


class PictureAttention(Attention):
    """Attention of all pixels to all, with one head, plus the residual."""

    def __init__(self, channels: int, groups: int) -> None:
        self.group_norm = nn.GroupNorm(groups, channels, EPS, pytorch_compatible=True)
        super().__init__(channels, heads=1, bias=True)

    def __call__(self, x: wx.Array, context: wx.Array | None = None) -> wx.Array:
        """Map (n, height, width, channels) to the same shape."""
        n, height, width, channels = x.shape
        pixels = self.group_norm(x).reshape(n, height * width, channels)
        return x + super().__call__(pixels, context).reshape(x.shape)


class Block(nn.Module):
    """Residual blocks, and a change of size after them except at the last level."""

    def __init__(self, widths: Sequence[int], groups: int) -> None:
        made = pairwise(widths)
        self.resnets = [ResnetBlock(a, b, groups=groups, eps=EPS) for a, b in made]
        self.downsamplers: list[Downsample] = []
        self.upsamplers: list[Upsample] = []

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to the output of the last part."""
        for part in (*self.resnets, *self.downsamplers, *self.upsamplers):
            x = part(x)
        return x


class Middle(nn.Module):
    """Two residual blocks with attention between them."""

    def __init__(self, channels: int, groups: int, attends: bool) -> None:
        self.attentions = [PictureAttention(channels, groups)] if attends else []
        self.resnets = [ResnetBlock(channels, channels, groups=groups, eps=EPS) for _ in range(2)]

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to the same shape."""
        x = self.resnets[0](x)
        for attention in self.attentions:
            x = attention(x)
        return self.resnets[1](x)


class Encoder(nn.Module):
    """The encoder of an image to the mean and logarithmic variance of latents."""

    def __init__(self, settings: Settings) -> None:
        widths = settings.uints("block_out_channels")
        groups = settings.uint("norm_num_groups", default=32)
        layers = settings.uint("layers_per_block", default=1)
        self.conv_in = nn.Conv2d(settings.uint("in_channels", default=3), widths[0], 3, padding=1)
        self.down_blocks = [
            Block([before, *[width] * layers], groups)
            for before, width in zip([widths[0], *widths], widths, strict=False)
        ]
        for block, width in zip(self.down_blocks[:-1], widths, strict=False):
            # Padded at the lower right only, as in the code that trained the weights.
            block.downsamplers = [Downsample(width, padding=((0, 1), (0, 1)))]
        self.mid_block = Middle(widths[-1], groups, _attends(settings))
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], EPS, pytorch_compatible=True)
        channels = settings.uint("latent_channels", default=4)
        self.conv_out = nn.Conv2d(widths[-1], 2 * channels, 3, padding=1)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, 3) to (n, h, w, 2 · channels)."""
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(nn.silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nn.Module):
    """The decoder of latents to an image."""

    def __init__(self, settings: Settings) -> None:
        widths = settings.uints("block_out_channels")[::-1]
        groups = settings.uint("norm_num_groups", default=32)
        # The published decoder has one block more per level than the encoder.
        layers = settings.uint("layers_per_block", default=1) + 1
        channels = settings.uint("latent_channels", default=4)
        self.conv_in = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.mid_block = Middle(widths[0], groups, _attends(settings))
        self.up_blocks = [
            Block([before, *[width] * layers], groups)
            for before, width in zip([widths[0], *widths], widths, strict=False)
        ]
        for block, width in zip(self.up_blocks[:-1], widths, strict=False):
            block.upsamplers = [Upsample(width)]
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], EPS, pytorch_compatible=True)
        outputs = settings.uint("out_channels", default=3)
        self.conv_out = nn.Conv2d(widths[-1], outputs, 3, padding=1)

    def __call__(self, z: wx.Array) -> wx.Array:
        """Map (n, h, w, channels) to (n, height, width, 3)."""
        x = self.mid_block(self.conv_in(z))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(nn.silu(self.conv_norm_out(x)))


@nn.published("AutoencoderKL")
class AutoencoderKL(Autoencoder):
    """The encoder and decoder of Stable Diffusion and FLUX.1."""

    # Files of 2022 have the projections of attention under other names, as 1 x 1 convolutions.
    renamed = (
        (r"(.*attentions\.\d+)\.query\.", r"\1.to_q."),
        (r"(.*attentions\.\d+)\.key\.", r"\1.to_k."),
        (r"(.*attentions\.\d+)\.value\.", r"\1.to_v."),
        (r"(.*attentions\.\d+)\.proj_attn\.", r"\1.to_out.0."),
    )

    def __init__(self, settings: Settings) -> None:
        for name, known in (("down_block_types", "DownEncoder"), ("up_block_types", "UpDecoder")):
            for kind in settings.texts(name):
                if kind != f"{known}Block2D":
                    raise settings.error(name, f"has {kind!r}, needs {known}Block2D")
        self.encoder = Encoder(settings)
        self.decoder = Decoder(settings)
        self.channels = settings.uint("latent_channels", default=4)
        n = self.channels
        quant, post = (
            settings.flag(k, default=True) for k in ("use_quant_conv", "use_post_quant_conv")
        )
        self.quant_conv = nn.Conv2d(2 * n, 2 * n, 1) if quant else None
        self.post_quant_conv = nn.Conv2d(n, n, 1) if post else None
        widths = settings.uints("block_out_channels")
        self.factor = 2 ** (len(widths) - 1)
        # The last array that is enlarged still has the channels of the level before.
        self.widest = max(widths[:2])
        self.scale = settings.number("scaling_factor", default=0.18215)
        self.shift = settings.number("shift_factor", default=0.0)

    def encode(self, picture: wx.Array) -> tuple[wx.Array, wx.Array]:
        """Return the mean and logarithmic variance of an image's latents, unscaled.

        Parameters
        ----------
        picture : (n, height, width, 3)
        """
        x = self.encoder(picture)
        x = x if self.quant_conv is None else self.quant_conv(x)
        # As in the published code: an outlier's exponential could be infinite without bounds.
        mean, logvar = x.split(2, axis=-1)
        return mean, wx.clip(logvar, -30.0, 20.0)

    def decode(self, z: wx.Array) -> wx.Array:
        """Return the image of unscaled latents, not clipped.

        Parameters
        ----------
        z : (n, h, w, channels)
        """
        return self.decoder(z if self.post_quant_conv is None else self.post_quant_conv(z))


def _attends(settings: Settings) -> bool:
    return settings.flag("mid_block_add_attention", default=True)
