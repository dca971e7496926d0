"""What the networks of pictures have in common: how they are made, what pipelines ask of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.array import nn


class Network(nn.Module):
    """A network that somebody published, as a folder's config.json describes it.

    Parameters
    ----------
    settings : Settings
        Of config.json.
    """


class Denoiser(Network):
    """A network that says where noisy latents go.

    Attributes
    ----------
    channels : int
        Of latents, or of a token of them where the network takes tokens. A network for inpainting
        counts the mask and the masked picture.
    patch : int
        Latents that sides are multiples of.
    """

    channels: int
    patch: int


class TokenDenoiser(Denoiser):
    """A `Denoiser` of tokens, those of a text beside those of pictures.

    A call gives velocities (n, tokens, channels). It takes

    - x : (n, tokens, channels), tokens of pictures to look at behind those that are made;
    - timestep : (n,), 0 to 1;
    - text : (n, tokens of the text, width);
    - rope : (tokens, pairs, 2), cosines and sines of the places of all tokens, text first, which
      its method `rope` makes from the rows and columns of each picture, that which is made first;
    - guidance : (n,) where it is guided.

    Attributes
    ----------
    guided : bool
        Whether it takes a number for how much the text guides.
    """

    guided: bool = False


class Autoencoder(Network):
    """Encoder and decoder of pictures.

    Attributes
    ----------
    factor : int
        Pixels along the side of a latent.
    channels : int
        Of latents.
    widest : int
        Channels of the largest array at the size of the picture.
    scale, shift : float, or (channels,), f32
        Latents as diffusion has them are ``(z - shift) * scale``.
    """

    factor: int
    channels: int
    widest: int
    scale: float | NDArray[np.floating[Any]]
    shift: float | NDArray[np.floating[Any]]
