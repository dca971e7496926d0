"""The common part of flow-matching transformer pipelines: sigmas, and packed latents.

Latents are (1, height, width, channels) here. For networks that take rows of tokens, a token is a
square of 2 x 2 latents, its channels slowest.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.errors import OptionError
from wgpu_backend.images.pipelines.latent import LatentPipeline, last
from wgpu_backend.images.requests import Draw, Floats, Request
from wgpu_backend.images.schedule import Schedule
from wgpu_backend.images.schedulers import linear_mu, linear_sigmas

# Side of a square of latents.
SIDE = 2


class FlowPipeline(LatentPipeline):
    """A pipeline whose ``transformer`` predicts a velocity, with sigmas that depend on size.

    Attributes
    ----------
    words : int
        Default length of a prompt, in tokens.
    packs : bool
        Whether diffusers' layout of latents is rows of tokens.
    """

    denoiser: ClassVar[str] = "transformer"
    native: ClassVar[int] = 128
    strength: ClassVar[float] = 0.6
    words: ClassVar[int] = 512
    packs: ClassVar[bool] = False

    # Schedules.

    def plan(self, request: Request) -> Schedule:
        """Return the schedule: all steps, or the last of them for image to image."""
        steps = self.count_steps(request)
        schedule = self.choose_scheduler(request).plan(
            steps, sigmas=linear_sigmas(steps), mu=self.get_mu(request, steps)
        )
        if self.starts_from_image(request):
            schedule.first = self._first_step(steps, self.get_strength(request))
        return schedule

    def _first_step(self, steps: int, strength: float) -> int:
        """Return the first step of image to image; the number of steps is rounded up."""
        if not 0 < strength <= 1:
            raise OptionError(f"strength is {strength}, needs more than 0 and at most 1")
        return int(max(steps - steps * strength, 0))

    def count_steps(self, request: Request) -> int:
        """Return the number of steps."""
        return request.num_inference_steps or self.steps

    def get_mu(self, request: Request, steps: int) -> float:
        """Return the shift of sigmas."""
        del steps
        rows, columns = self.get_grid(request)
        return linear_mu(self.scheduler.settings, rows * columns)

    def starts_from_image(self, request: Request) -> bool:
        """Return whether the image is a starting point, not a reference."""
        return request.image is not None

    @property
    def is_inpainting(self) -> bool:
        """Return False: none of these networks takes a mask."""
        return False

    def get_grid(self, request: Request) -> tuple[int, int]:
        """Return the rows and columns of the image's tokens."""
        height, width = self.picture_size(request)
        return height // self.multiple, width // self.multiple

    # Latents in diffusers' layout.

    def _first_noise(self, request: Request, shape: tuple[int, ...], draw: Draw) -> wx.Array:
        if request.latents is None or not self.packs:
            return super()._first_noise(request, shape, draw)
        n, channels, height, width = shape
        packed = (n, height // SIDE * (width // SIDE), channels * SIDE**2)
        given = np.asarray(request.latents, np.float32)
        if given.shape != packed:
            raise OptionError(f"latents are {given.shape}, needs {packed}")
        return unpack(wx.array(given), height // SIDE, width // SIDE)

    def export_latents(self, latents: wx.Array) -> Floats:
        """Return latents in the layout of the argument `latents`."""
        return pack(latents).numpy() if self.packs else super().export_latents(latents)

    # Reference images.

    def encode_mean(self, picture: Floats) -> wx.Array:
        """Return the mean of the latents of an image (1, 3, height, width)."""
        mean, _ = self._encode(wx.array(last(picture)))
        return (mean - self.vae.shift) * self.vae.scale

    def require_no_negative(self, request: Request) -> None:
        """Raise an OptionError if there is a negative prompt."""
        if request.negative_prompt:
            raise OptionError(
                f"{self.folder.class_name} does not support a negative prompt, got "
                f"{request.negative_prompt[:40]!r}"
            )


def pack(latents: wx.Array) -> wx.Array:
    """Convert latents (n, height, width, channels) to tokens (n, squares, 4 channels)."""
    n, height, width, channels = latents.shape
    parts = latents.reshape(n, height // SIDE, SIDE, width // SIDE, SIDE, channels)
    ordered = wx.permute_dims(parts, (0, 1, 3, 5, 2, 4))
    return ordered.reshape(n, height // SIDE * (width // SIDE), channels * SIDE**2)


def unpack(tokens: wx.Array, rows: int, columns: int) -> wx.Array:
    """Convert tokens (n, rows · columns, 4 channels) to latents (n, height, width, channels)."""
    n, _, cols = tokens.shape
    parts = tokens.reshape(n, rows, columns, cols // SIDE**2, SIDE, SIDE)
    ordered = wx.permute_dims(parts, (0, 1, 4, 2, 5, 3))
    return ordered.reshape(n, rows * SIDE, columns * SIDE, cols // SIDE**2)
