"""What a picture is asked for with, what comes back, and what is told meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import wgpu_backend.array as wx
from wgpu_backend.errors import OptionError
from wgpu_backend.images.pictures import Source

Floats = NDArray[np.float32]
Draw = Callable[[Sequence[int]], NDArray[Any]]
OutputType = Literal["pil", "np", "latent"]
OUTPUTS = ("pil", "np", "latent")
MAX_SIDE = 16384  # pixels
MAX_PICTURES = 64  # of one call
SEEDS = 1 << 63


@dataclass(frozen=True, slots=True)
class Step:
    """What is told behind each step.

    Parameters
    ----------
    index : int
        From 0.
    count : int
        Steps in all.
    timestep : float
    latents : Array
        Behind the step, as the network takes them.
    preview : callable
        Makes a picture of them, (height, width, 3) from 0 to 1: by a tiny autoencoder where the
        pipeline has one, else by its own.
    """

    index: int
    count: int
    timestep: float
    latents: wx.Array
    preview: Callable[[], Floats] = field(repr=False)


Callback = Callable[[Step], object]


@dataclass
class Request:
    """Arguments of `Pipeline.generate`, with diffusers' names; None takes the pipeline's default.

    Parameters
    ----------
    prompt : str
    negative_prompt : str or None
        What to stay away from.
    num_inference_steps : int or None
    guidance_scale : float or None
        How far from the negative prompt.
    latents : array or None
        First latents, as diffusers' pipeline takes them; drawn unless given.
    image : picture or None
        What to begin with, see `wgpu_backend.images.pictures.load_picture`.
    mask_image : picture or None
        White where `image` is painted anew.
    strength : float or None
        Share of the steps that are made where there is an `image`.
    height, width : int or None
        Pixels.
    seed : int or None
        Of all random numbers; drawn unless given. Pictures are the same on every device.
    generator : callable or None
        Draws standard normal numbers of a shape in place of the seed's.
    scheduler : str or None
        Another than the folder's; see `wgpu_backend.images.schedulers.NAMES`.
    num_images_per_prompt : int
        Each has the next seed.
    max_sequence_length : int or None
        Tokens of text encoders that take more or fewer.
    output_type : str
        ``pil``, ``np`` (n, height, width, 3) from 0 to 1, or ``latent``.
    callback : callable or None
        Called with a `Step` behind each step; what it raises ends the call.
    """

    prompt: str
    negative_prompt: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    latents: Any = None
    image: Source | None = None
    mask_image: Source | None = None
    strength: float | None = None
    height: int | None = None
    width: int | None = None
    seed: int | None = None
    generator: Draw | None = None
    scheduler: str | None = None
    num_images_per_prompt: int = 1
    max_sequence_length: int | None = None
    output_type: OutputType = "pil"
    callback: Callback | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"prompt is {type(self.prompt).__name__}, needs a text")
        if self.output_type not in OUTPUTS:
            raise OptionError(f"output_type is {self.output_type!r}, needs one of {OUTPUTS}")
        if self.mask_image is not None and self.image is None:
            raise OptionError("mask_image without image, give the picture that it is a mask of")
        if not 1 <= self.num_images_per_prompt <= MAX_PICTURES:
            raise OptionError(
                f"num_images_per_prompt is {self.num_images_per_prompt}, needs 1 to {MAX_PICTURES}"
            )
        if self.seed is not None and not 0 <= self.seed < SEEDS:
            raise OptionError(f"seed is {self.seed}, needs 0 to {SEEDS - 1}")
        if self.num_inference_steps is not None and self.num_inference_steps < 1:
            raise OptionError(
                f"num_inference_steps is {self.num_inference_steps}, needs at least 1"
            )
        scale = self.guidance_scale
        if scale is not None and not 0 <= scale <= 1000:
            raise OptionError(f"guidance_scale is {scale}, needs 0 to 1000")


@dataclass(frozen=True, slots=True)
class Generated:
    """What came of a request.

    Parameters
    ----------
    images : list of Image, or (n, height, width, 3), or latents
        As `output_type` says.
    seeds : list of int
        Of each; empty where random numbers came from elsewhere.
    """

    images: list[Image.Image] | Floats
    seeds: list[int]


def drawing(seed: int) -> Draw:
    """What draws standard normal numbers of a seed, on the host: the same for every device."""
    rng = np.random.default_rng(seed)
    return lambda shape: rng.standard_normal(tuple(shape)).astype(np.float32)
