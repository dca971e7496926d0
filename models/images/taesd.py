"""TAESD: a small autoencoder for previews, of convolutions alone (Bohan 2023, madebyollin/taesd).

Images are (n, height, width, 3) from -1 to 1; latents are scaled as in diffusion.
"""

from __future__ import annotations

from collections.abc import Callable

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

Layer = Callable[[wx.Array], wx.Array]


class Block(nn.Module):
    """Three convolutions plus the residual."""

    def __init__(self, channels: int, activation: str) -> None:
        act = nn.activation(activation)
        convs = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3)]
        self.conv: list[Layer] = [convs[0], act, convs[1], act, convs[2]]

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to the same shape."""
        y = x
        for layer in self.conv:
            y = layer(y)
        return nn.relu(x + y)


class Layers(nn.Module):
    """A sequence of layers."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def __call__(self, x: wx.Array) -> wx.Array:
        """Return the output of the last layer."""
        for layer in self.layers:
            x = layer(x)
        return x


@nn.published("AutoencoderTiny")
class TAESD(nn.Module):
    """The encoder and decoder of TAESD.

    Parameters
    ----------
    settings : Settings
        Settings of config.json.
    """

    def __init__(self, settings: Settings) -> None:
        self.encoder = Layers(_encoder(settings))
        self.decoder = Layers(_decoder(settings))

    def encode(self, picture: wx.Array) -> wx.Array:
        """Return the latents of an image (n, height, width, 3)."""
        # TAESD was trained on images from 0 to 1.
        return self.encoder((picture + 1.0) * 0.5)

    def decode(self, z: wx.Array) -> wx.Array:
        """Return the image of latents (n, h, w, channels), which are first squashed to -3 to 3."""
        return self.decoder(wx.tanh(z * (1 / 3)) * 3.0) * 2.0 - 1.0


def _encoder(settings: Settings) -> list[Layer]:
    widths = settings.uints("encoder_block_out_channels")
    act = settings.text("act_fn", default="relu")
    layers: list[Layer] = []
    before = settings.uint("in_channels", default=3)
    for i, (width, count) in enumerate(
        zip(widths, settings.uints("num_encoder_blocks"), strict=True)
    ):
        layers.append(nn.Conv2d(before, width, 3, stride=2 if i else 1, padding=1, bias=not i))
        layers += [Block(width, act) for _ in range(count)]
        before = width
    latents = settings.uint("latent_channels", default=4)
    return [*layers, nn.Conv2d(before, latents, 3, padding=1)]


def _decoder(settings: Settings) -> list[Layer]:
    widths = settings.uints("decoder_block_out_channels")
    counts = settings.uints("num_decoder_blocks")
    act = settings.text("act_fn", default="relu")
    latents = settings.uint("latent_channels", default=4)
    layers: list[Layer] = [nn.Conv2d(latents, widths[0], 3, padding=1), nn.activation(act)]
    factor = settings.uint("upsampling_scaling_factor", default=2)
    for width, count in zip(widths[:-1], counts, strict=False):
        layers += [Block(width, act) for _ in range(count)]
        layers += [nn.Upsample(factor), nn.Conv2d(width, width, 3, padding=1, bias=False)]
    layers += [Block(widths[-1], act) for _ in range(counts[-1])]
    outputs = settings.uint("out_channels", default=3)
    return [*layers, nn.Conv2d(widths[-1], outputs, 3, padding=1)]
