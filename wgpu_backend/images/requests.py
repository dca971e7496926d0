"""The request of an image, its result, and the progress reported in between."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

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
# Pixels.
MAX_SIDE = 16384
# Images of one call.
MAX_PICTURES = 64
SEEDS = 1 << 63


@dataclass(frozen=True, slots=True)
class Step:
    """The progress after a step.

    Parameters
    ----------
    index : int
        Index of the step, from 0.
    count : int
        Total number of steps.
    latents : Array
        Latents after the step, in the network's layout.
    preview : callable
        Decodes them to (height, width, 3) from 0 to 1, with a tiny autoencoder if the pipeline has
        one, else with its own.
    """

    index: int
    count: int
    timestep: float
    latents: wx.Array
    preview: Callable[[], Floats] = field(repr=False)


Callback = Callable[[Step], object]


@dataclass
class Request:
    """The arguments of `Pipeline.generate`, named as in diffusers; None means the default.

    Parameters
    ----------
    negative_prompt : str or None
        Content to avoid.
    guidance_scale : float or None
        Strength of the guidance away from the negative prompt.
    latents : array or None
        First latents, in the layout of diffusers' pipeline; None draws them.
    image : picture or None
        Image to start from, see `wgpu_backend.images.pictures.load_picture`.
    mask_image : picture or None
        White where `image` is repainted.
    strength : float or None
        Share of the steps that are run for an `image`.
    height, width : int or None
        Pixels.
    seed : int or None
        Seed of all random numbers; None draws one. Noise is the same on every device.
    generator : callable or None
        Draws standard normal numbers of a shape, instead of those of the seed.
    scheduler : str or None
        Replaces the folder's scheduler; see `wgpu_backend.images.schedulers.NAMES`.
    num_images_per_prompt : int
        Number of images, with consecutive seeds.
    max_sequence_length : int or None
        Tokens of text encoders with a variable length.
    output_type : str
        ``pil``, ``np`` (n, height, width, 3) from 0 to 1, or ``latent``.
    callback : callable or None
        Called with a `Step` after each step; an exception it raises ends the call.
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
        self._require_kinds()
        if self.output_type not in OUTPUTS:
            raise OptionError(f"output_type is {self.output_type!r}, needs one of {OUTPUTS}")
        if self.mask_image is not None and self.image is None:
            raise OptionError("mask_image without image, give the image that it is a mask of")
        if not 1 <= self.num_images_per_prompt <= MAX_PICTURES:
            raise OptionError(
                f"num_images_per_prompt is {self.num_images_per_prompt}, needs 1 to {MAX_PICTURES}"
            )
        if self.seed is not None and not 0 <= self.seed < SEEDS:
            raise OptionError(f"seed is {self.seed}, needs 0 to {SEEDS - 1}")
        for name in ("num_inference_steps", "max_sequence_length"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise OptionError(f"{name} is {count}, needs at least 1")
        scale = self.guidance_scale
        if scale is not None and not 0 <= scale <= 1000:
            raise OptionError(f"guidance_scale is {scale}, needs 0 to 1000")

    def _require_kinds(self) -> None:
        """Raise for values of wrong types, which only some pipelines would notice."""
        for each in fields(self):
            value, kind = getattr(self, each.name), _KINDS.get(each.name)
            optional = each.default is None
            if kind is None or (optional and value is None):
                continue
            if not isinstance(value, kind.types) or isinstance(value, bool):
                raise OptionError(f"{each.name} is {type(value).__name__}, needs {kind.needed}")
        for name in ("generator", "callback"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise OptionError(f"{name} is {type(value).__name__}, needs a function")
        if self.latents is not None:
            try:
                self.latents = np.asarray(self.latents, np.float32)
            except (TypeError, ValueError) as error:
                raise OptionError(f"latents: {error}, needs an array of floats") from None


class _Kind(NamedTuple):
    types: tuple[type, ...]
    needed: str


_TEXT = _Kind((str,), "a string")
_WHOLE = _Kind((int, np.integer), "a whole number")
_REAL = _Kind((int, float, np.integer, np.floating), "a number")
_PICTURE = _Kind(
    (str, os.PathLike, bytes, Image.Image, np.ndarray), "a path, bytes, Pillow's image or an array"
)
_KINDS = {
    "prompt": _TEXT, "negative_prompt": _TEXT, "scheduler": _TEXT, "output_type": _TEXT,
    "num_inference_steps": _WHOLE, "height": _WHOLE, "width": _WHOLE, "seed": _WHOLE,
    "num_images_per_prompt": _WHOLE, "max_sequence_length": _WHOLE,
    "guidance_scale": _REAL, "strength": _REAL, "image": _PICTURE, "mask_image": _PICTURE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Generated:
    """The result of a request.

    Parameters
    ----------
    images : list of Image, or (n, height, width, 3), or latents
        In the form of `output_type`.
    seeds : list of int
        Seed of each image; empty if a `generator` drew the numbers.
    """

    images: list[Image.Image] | Floats
    seeds: list[int]


def make_draw(seed: int) -> Draw:
    """Return a function that draws standard normal numbers of a seed, on the host."""
    rng = np.random.default_rng(seed)
    return lambda shape: rng.standard_normal(tuple(shape)).astype(np.float32)


def check_draw(draw: Draw) -> Draw:
    """Wrap a function to raise if its result has a wrong shape."""

    def draw_checked(shape: Sequence[int]) -> NDArray[Any]:
        made = np.asarray(draw(shape))
        if made.shape != tuple(shape) or made.dtype.kind not in "fiu":
            raise OptionError(
                f"generator: made {made.dtype} of shape {made.shape}, needs floats of shape "
                f"{tuple(shape)}"
            )
        return made

    return draw_checked
