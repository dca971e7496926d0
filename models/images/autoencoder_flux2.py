"""The autoencoder of FLUX.2: `AutoencoderKL`, whose latents are squares of 2 x 2, normalised.

A square's channels are those of its four latents, with the channel of a latent as the slowest axis.
Each has a mean and a variance over the training images, stored like those of a batch norm.
"""

from __future__ import annotations

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

from .autoencoder_kl import AutoencoderKL

# Latents along the side of a square.
SIDE = 2


@nn.published("AutoencoderKLFlux2")
class AutoencoderFlux2(AutoencoderKL):
    """The encoder and decoder of FLUX.2.

    Attributes
    ----------
    factor, channels
        Pixels and channels of a square; those of `AutoencoderKL` are of one latent.
    """

    ignored = (r"bn\.num_batches_tracked",)

    def __init__(self, settings: Settings) -> None:
        if settings.value("decoder_block_out_channels") not in (None, settings.value(_WIDTHS)):
            raise settings.error("decoder_block_out_channels", f"differs from {_WIDTHS!r}")
        super().__init__(settings)
        self.channels *= SIDE**2
        self.factor *= SIDE
        self.scale, self.shift = 1.0, 0.0
        eps = settings.number("batch_norm_eps", default=1e-4)
        self.bn = nn.BatchNorm(self.channels, eps, affine=False)

    def encode(self, picture: wx.Array) -> tuple[wx.Array, wx.Array]:
        """Return the mean and logarithmic variance of an image's squares, normalised.

        Parameters
        ----------
        picture : (n, height, width, 3)
        """
        mean, logvar = (_pack_squares(part) for part in super().encode(picture))
        return self.bn(mean), logvar - wx.log(self._variances())

    def decode(self, z: wx.Array) -> wx.Array:
        """Return the image of normalised squares, not clipped.

        Parameters
        ----------
        z : (n, h, w, channels)
        """
        return super().decode(
            _unpack_squares(z * wx.sqrt(self._variances()) + self.bn.running_mean)
        )

    def _variances(self) -> wx.Array:
        return self.bn.running_var + self.bn.eps


_WIDTHS = "block_out_channels"


def _pack_squares(x: wx.Array) -> wx.Array:
    """Pack latents (n, h, w, c) into squares (n, h / 2, w / 2, 4 c)."""
    n, height, width, channels = x.shape
    parts = x.reshape(n, height // SIDE, SIDE, width // SIDE, SIDE, channels)
    ordered = wx.permute_dims(parts, (0, 1, 3, 5, 2, 4))
    return ordered.reshape(n, height // SIDE, width // SIDE, channels * SIDE**2)


def _unpack_squares(x: wx.Array) -> wx.Array:
    """Unpack squares (n, h, w, 4 c) to latents (n, 2 h, 2 w, c)."""
    n, height, width, channels = x.shape
    parts = x.reshape(n, height, width, channels // SIDE**2, SIDE, SIDE)
    ordered = wx.permute_dims(parts, (0, 1, 4, 2, 5, 3))
    return ordered.reshape(n, SIDE * height, SIDE * width, channels // SIDE**2)
