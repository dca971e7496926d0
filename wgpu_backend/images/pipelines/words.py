"""The bundled image model: images of sentences in a small vocabulary, pixel by pixel.

Noise and images are (n, side, side, 3); there is no autoencoder. Image to image and masks work as
in other pipelines: Meng et al. 2022, "SDEdit", §3.
"""

from __future__ import annotations

import logging
import re
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.errors import OptionError
from wgpu_backend.images import pictures
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.pipelines import register
from wgpu_backend.images.pipelines.latent import apply_guidance, first, last, twice
from wgpu_backend.images.pipelines.pipeline import Conditions, Pipeline
from wgpu_backend.images.requests import Draw, Floats, Request
from wgpu_backend.images.schedule import Schedule, first_step

_log = logging.getLogger("wgpu_backend.images")
# Words that are ignored.
_FILLERS = frozenset(("a", "an", "the"))


@register("PicturePipeline")
class PicturePipeline(Pipeline):
    """A `PictureTransformer` over pixels, and its vocabulary."""

    steps: ClassVar[int] = 20
    guidance: ClassVar[float] = 1.2

    def __init__(self, folder: PipelineFolder, *, exact: bool = False) -> None:
        super().__init__(folder, exact=exact)
        self.multiple = self.transformer.side
        vocabulary = folder["transformer"].settings.texts("vocabulary")
        self._numbers = {word: i for i, word in enumerate(vocabulary)}

    @property
    def transformer(self) -> Any:  # noqa: ANN401  a network of some file of models
        """Return the network."""
        return self.networks["transformer"]

    # Words.

    def encode(self, sentence: str) -> NDArray[np.int32]:
        """Return the ids of known words, (words,), padded with 0.

        Unknown words, and those beyond the length of a prompt, are reported in a warning of the
        logger ``wgpu_backend.images``.
        """
        length: int = self.transformer.words
        words = [w for w in re.findall(r"[^\W_]+", sentence.lower()) if w not in _FILLERS]
        unknown = [word for word in words if word not in self._numbers]
        known = [self._numbers[word] for word in words if word in self._numbers]
        if unknown:
            _log.warning("words that the model does not know: %s", ", ".join(unknown)[:200])
        if len(known) > length:
            _log.warning("the prompt has %d words, only the first %d count", len(known), length)
        return np.array((known + [0] * length)[:length], np.int32)

    def conditions(self, request: Request) -> Conditions:
        """Return the words of the prompt, after those of the negative prompt if guided."""
        scale = self.get_guidance(request)
        if scale <= 1:
            return {"words": wx.array(self.encode(request.prompt)[None])}
        rows = [self.encode(text) for text in (request.negative_prompt or "", request.prompt)]
        return {"words": wx.array(np.stack(rows)), "guidance": wx.array([scale], "f32")}

    # Image to image.

    def plan(self, request: Request) -> Schedule:
        """Return the schedule: all steps, or the last of them for image to image."""
        schedule = super().plan(request)
        if request.image is not None:
            whole = request.mask_image is not None
            default = 1.0 if whole else self.strength
            strength = default if request.strength is None else request.strength
            schedule.first = first_step(len(schedule), strength)
        return schedule

    def begin(
        self, request: Request, schedule: Schedule, draw: Draw
    ) -> tuple[wx.Array, Conditions]:
        """Return the noise, mixed with a source image if there is one, and the mask."""
        side = self.multiple
        height, width = self.choose_size(request, (side, side))
        if (height, width) != (side, side):
            raise OptionError(
                f"an image of {width} x {height} pixels, this model generates {side} x {side}"
            )
        noise = self._noise(request, draw)
        if request.image is None:
            return noise, {}
        picture = pictures.resize(pictures.load_picture(request.image), side, side, "crop")
        known = wx.array(last(pictures.encoder_input(picture)))
        begun = schedule.add_noise(known, noise, schedule.first)
        if request.mask_image is None:
            return begun, {}
        mask = pictures.resize(pictures.load_mask(request.mask_image), side, side, "crop")
        painted = wx.array(last(pictures.mask_input(mask)))
        return begun, {"mask": painted, "known": known, "noise": noise}

    def _noise(self, request: Request, draw: Draw) -> wx.Array:
        shape = (1, 3, self.multiple, self.multiple)
        noise = draw(shape) if request.latents is None else np.asarray(request.latents)
        if noise.shape != shape:
            raise OptionError(f"latents are {noise.shape}, needs {shape}")
        return wx.array(last(noise.astype(np.float32)))

    # Steps.

    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Return the velocity, noise minus image, after guidance."""
        share = timestep * 0.001
        both = twice(x, conditions)
        drawn = self.transformer(both, share, conditions["words"])
        return apply_guidance((both - drawn) / share, conditions)

    def after_step(
        self, latents: wx.Array, numbers: Conditions, conditions: Conditions
    ) -> wx.Array:
        """Restore the known image where the mask is black, with the step's noise."""
        if "mask" not in conditions:
            return latents
        shares, mask = numbers["onward"], conditions["mask"]
        known = conditions["known"] * shares[0] + conditions["noise"] * shares[1]
        return (1.0 - mask) * known + mask * latents

    def decode(self, latents: wx.Array) -> Floats:
        """Return the pixels unchanged, (n, side, side, 3) from -1 to 1, not clipped."""
        return latents.numpy()

    def export_latents(self, latents: wx.Array) -> Floats:
        """Return the pixels as (n, 3, side, side)."""
        return first(latents.numpy())
