"""Base classes of image networks: their constructor, and the attributes that pipelines read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.array import nn


class Network(nn.Module):
    """A published network, made from the config.json of its folder.

    Parameters
    ----------
    settings : Settings
        Settings of config.json.
    """


class Denoiser(Network):
    """A network that predicts noise or velocity from noisy latents.

    Attributes
    ----------
    channels : int
        Channels of latents, or of a token if the network takes tokens. A network for inpainting
        counts those of the mask and the masked image.
    patch : int
        Number of latents of which height and width are multiples.
    """

    channels: int
    patch: int


class TokenDenoiser(Denoiser):
    """A `Denoiser` of tokens, of texts and images.

    A call returns velocities (n, tokens, channels). It takes

    - x : (n, tokens, channels), the tokens of the new image, then those of reference images;
    - timestep : (n,), 0 to 1;
    - text : (n, tokens of the text, width);
    - rope : (tokens, pairs, 2), cosines and sines of the positions of all tokens, text first, which
      its method `rope` makes from the rows and columns of each image, the new one first;
    - guidance : (n,) if it is guided.

    Attributes
    ----------
    guided : bool
        Whether it takes a guidance strength.
    """

    guided: bool = False


class Autoencoder(Network):
    """An encoder and decoder of images.

    Attributes
    ----------
    factor : int
        Pixels along the side of a latent.
    channels : int
        Channels of latents.
    widest : int
        Channels of the largest array of the image's size.
    scale, shift : float, or (channels,), f32
        Diffusion runs on latents ``(z - shift) * scale``.
    """

    factor: int
    channels: int
    widest: int
    scale: float | NDArray[np.floating[Any]]
    shift: float | NDArray[np.floating[Any]]
