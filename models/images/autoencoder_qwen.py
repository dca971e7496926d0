"""The autoencoder of Qwen-Image, for images, which are videos of one frame.

Wan Team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models".

Its convolutions see earlier frames only. The first frame has none, so that only the last slice of
each kernel applies to an image. Images are (n, height, width, 3) from -1 to 1,
latents (n, height / 8, width / 8, channels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.array.nn.convolution import Paddings
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.graph.node import Node

from .networks import Autoencoder

MEANS = [-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
         0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921]  # fmt: skip
DEVIATIONS = [2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
              3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160]  # fmt: skip
# Pixels of zeros must not be divided by 0.
_TINY = 1e-24


class CausalConv(nn.Conv2d):
    """A convolution of the first frame of a video.

    Attributes
    ----------
    weight : (outputs, frames, kernel, kernel, inputs)
    """

    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"weight": (0, 2, 3, 4, 1)}

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        self.weight = wx.zeros((outputs, kernel, kernel, kernel, inputs))

    def _convolve(self, x: Node) -> Node:
        return type(self).op(x, self.weight[:, -1].node, **self._options)


class PixelNorm(nn.Module):
    """A norm that scales the channels of each pixel to unit mean square, then by a weight.

    Attributes
    ----------
    gamma : (channels, 1, 1) for images, (channels, 1, 1, 1) for videos
    """

    def __init__(self, channels: int, axes: int = 3) -> None:
        self.gamma = wx.ones((channels, *[1] * axes))
        self._norm = nn.RMSNorm(channels, _TINY, affine=False)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to the same shape."""
        return self._norm(x) * self.gamma.reshape(x.shape[-1])


class ResnetBlock(nn.Module):
    """Two convolutions, each after a norm, plus the residual."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.norm1, self.norm2 = PixelNorm(inputs), PixelNorm(outputs)
        self.conv1 = CausalConv(inputs, outputs, 3)
        self.conv2 = CausalConv(outputs, outputs, 3)
        self.conv_shortcut = CausalConv(inputs, outputs, 1) if inputs != outputs else None

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, inputs) to (n, height, width, outputs)."""
        y = self.conv1(nn.silu(self.norm1(x)))
        y = self.conv2(nn.silu(self.norm2(y)))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    """Attention of all pixels to all, with one head, plus the residual."""

    def __init__(self, channels: int) -> None:
        self.norm = PixelNorm(channels, axes=2)
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to the same shape."""
        n, height, width, channels = x.shape
        parts = self.to_qkv(self.norm(x)).reshape(n, height * width, 1, 3 * channels)
        y = nn.attend(*parts.split(3, axis=-1))
        return x + self.proj(y.reshape(x.shape))


class Middle(nn.Module):
    """Two residual blocks with attention between them."""

    def __init__(self, channels: int) -> None:
        self.attentions = [Attention(channels)]
        self.resnets = [ResnetBlock(channels, channels) for _ in range(2)]

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to the same shape."""
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Resample(nn.Module):
    """A convolution of stride 2, or one after each pixel is repeated four times."""

    def __init__(self, inputs: int, outputs: int, *, up: bool) -> None:
        behind: Paddings = 1 if up else ((0, 1), (0, 1))
        conv = nn.Conv2d(inputs, outputs, 3, stride=1 if up else 2, padding=behind)
        self.resample = [nn.Upsample(2) if up else nn.Identity(), conv]

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, inputs) to half or twice the size, with `outputs` channels."""
        for part in self.resample:
            x = part(x)
        return x


class Encoder(nn.Module):
    """The encoder of an image to the mean and logarithmic variance of latents."""

    def __init__(self, settings: Settings) -> None:
        widths, layers = _widths(settings), _layers(settings)
        self.conv_in = CausalConv(_colours(settings), widths[0], 3)
        self.down_blocks: list[ResnetBlock | Resample] = []
        for level, (before, width) in enumerate(pairwise([widths[0], *widths])):
            inputs = [before, *[width] * (layers - 1)]
            self.down_blocks += [ResnetBlock(a, width) for a in inputs]
            if level < len(widths) - 1:
                self.down_blocks.append(Resample(width, width, up=False))
        self.mid_block = Middle(widths[-1])
        self.norm_out = PixelNorm(widths[-1])
        self.conv_out = CausalConv(widths[-1], 2 * _channels(settings), 3)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, 3) to (n, height / 8, width / 8, 2 * channels)."""
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(nn.silu(self.norm_out(self.mid_block(x))))


class UpBlock(nn.Module):
    """Residual blocks, then twice the size with half the channels except at the last level."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.resnets = [ResnetBlock(a, b) for a, b in pairwise(widths)]
        self.upsamplers: list[Resample] = []

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to as many channels as the last width, or half."""
        for part in (*self.resnets, *self.upsamplers):
            x = part(x)
        return x


class Decoder(nn.Module):
    """The decoder of latents to an image."""

    def __init__(self, settings: Settings) -> None:
        widths = _widths(settings)[::-1]
        layers = _layers(settings) + 1
        self.conv_in = CausalConv(_channels(settings), widths[0], 3)
        self.mid_block = Middle(widths[0])
        inputs = [widths[0], *(width // 2 for width in widths[:-1])]
        self.up_blocks = [
            UpBlock([before, *[width] * layers])
            for before, width in zip(inputs, widths, strict=True)
        ]
        for block, width in zip(self.up_blocks[:-1], widths, strict=False):
            block.upsamplers = [Resample(width, width // 2, up=True)]
        self.norm_out = PixelNorm(widths[-1])
        self.conv_out = CausalConv(widths[-1], _colours(settings), 3)

    def __call__(self, z: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to (n, 8 * height, 8 * width, 3)."""
        x = self.mid_block(self.conv_in(z))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(nn.silu(self.norm_out(x)))


@nn.published("AutoencoderKLQwenImage")
class AutoencoderQwen(Autoencoder):
    """The encoder and decoder of Qwen-Image.

    Each channel of latents is normalised by its mean and deviation over the training images.
    """

    # Convolutions between frames, of which an image has one.
    ignored = (r".*\.time_conv\..*",)

    def __init__(self, settings: Settings) -> None:
        if settings.numbers("attn_scales", default=[]):
            raise settings.error("attn_scales", f"is {settings.value('attn_scales')}, known is []")
        self.encoder = Encoder(settings)
        self.decoder = Decoder(settings)
        self.channels = _channels(settings)
        self.quant_conv = CausalConv(2 * self.channels, 2 * self.channels, 1)
        self.post_quant_conv = CausalConv(self.channels, self.channels, 1)
        widths = _widths(settings)
        self.factor = 2 ** (len(widths) - 1)
        # The last array that is enlarged still has the channels of the level before.
        self.widest = max(widths[:2])
        self.scale = 1 / _of_channels(settings, "latents_std", DEVIATIONS)
        self.shift = _of_channels(settings, "latents_mean", MEANS)

    def encode(self, picture: wx.Array) -> tuple[wx.Array, wx.Array]:
        """Return the mean and logarithmic variance of an image's latents, unscaled.

        Parameters
        ----------
        picture : (n, height, width, 3)
        """
        mean, logvar = self.quant_conv(self.encoder(picture)).split(2, axis=-1)
        return mean, wx.clip(logvar, -30.0, 20.0)

    def decode(self, z: wx.Array) -> wx.Array:
        """Return the image of unscaled latents, clipped to -1 and 1.

        Parameters
        ----------
        z : (n, h, w, channels)
        """
        return wx.clip(self.decoder(self.post_quant_conv(z)), -1.0, 1.0)


def _widths(settings: Settings) -> list[int]:
    """Return the channels of each level, the finest first."""
    base = settings.uint("base_dim", default=96)
    return [base * factor for factor in settings.uints("dim_mult", default=[1, 2, 4, 4])]


def _layers(settings: Settings) -> int:
    return settings.uint("num_res_blocks", default=2)


def _channels(settings: Settings) -> int:
    return settings.uint("z_dim", default=16)


def _of_channels(settings: Settings, name: str, default: list[float]) -> NDArray[np.float32]:
    found = settings.numbers(name, default=default)
    if len(found) != _channels(settings):
        raise settings.error(name, f"has {len(found)} numbers, needs {_channels(settings)}")
    return np.array(found, np.float32)


def _colours(settings: Settings) -> int:
    return settings.uint("input_channels", default=3)
