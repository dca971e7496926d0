"""What pipelines of transformers for flow matching have in common: sigmas, and packed latents.

Inside, latents are (1, height, width, channels); where a network takes rows of tokens, a token is
a square of 2 x 2, its channels slowest.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.errors import OptionError
from wgpu_backend.images.pipelines.latent import LatentPipeline, last
from wgpu_backend.images.requests import Draw, Floats, Request
from wgpu_backend.images.schedulers import Schedule, linear_mu, linear_sigmas

SIDE = 2  # of a square of latents


class FlowPipeline(LatentPipeline):
    """A pipeline whose ``transformer`` says a velocity, and whose sigmas depend on the size.

    Attributes
    ----------
    words : int
        Tokens of a prompt that are read, unless a request says how many.
    packs : bool
        Whether diffusers has its latents as rows of tokens.
    """

    denoiser: ClassVar[str] = "transformer"
    native: ClassVar[int] = 128
    strength: ClassVar[float] = 0.6
    words: ClassVar[int] = 512
    packs: ClassVar[bool] = False

    # Schedules.

    def plan(self, request: Request) -> Schedule:
        """All steps, or the last of them where a picture is begun with."""
        steps = self.count_steps(request)
        schedule = self.choose_scheduler(request).plan(
            steps, sigmas=linear_sigmas(steps), mu=self.get_mu(request, steps)
        )
        if self.starts_from_image(request):
            schedule.first = self._first_step(steps, self.get_strength(request))
        return schedule

    def _first_step(self, steps: int, strength: float) -> int:
        """Step with which a picture is begun: part of one counts as a whole, unlike elsewhere."""
        if not 0 < strength <= 1:
            raise OptionError(f"strength is {strength}, needs more than 0 and at most 1")
        return int(max(steps - steps * strength, 0))

    def count_steps(self, request: Request) -> int:
        """How many steps there are."""
        return request.num_inference_steps or self.steps

    def get_mu(self, request: Request, steps: int) -> float:
        """How much sigmas are shifted."""
        del steps
        rows, columns = self.get_grid(request)
        return linear_mu(self.scheduler.settings, rows * columns)

    def starts_from_image(self, request: Request) -> bool:
        """Whether a picture is begun with, rather than looked at."""
        return request.image is not None

    @property
    def is_inpainting(self) -> bool:
        """No network of these reads a mask."""
        return False

    def get_grid(self, request: Request) -> tuple[int, int]:
        """Rows and columns of the picture's tokens."""
        height, width = self.picture_size(request)
        return height // self.multiple, width // self.multiple

    # Latents as diffusers has them.

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
        """Latents in the form that `latents=` has."""
        return pack(latents).numpy() if self.packs else super().export_latents(latents)

    # Pictures to look at.

    def encode_mean(self, picture: Floats) -> wx.Array:
        """Mean of the latents of a picture (1, 3, height, width)."""
        mean, _ = self._encode(wx.array(last(picture)))
        return (mean - self.vae.shift) * self.vae.scale

    def require_no_negative(self, request: Request) -> None:
        """Refuse a negative prompt; OptionError."""
        if request.negative_prompt:
            raise OptionError(
                f"{self.folder.class_name} takes no negative prompt, it was given "
                f"{request.negative_prompt[:40]!r}"
            )


def pack(latents: wx.Array) -> wx.Array:
    """Latents (n, height, width, channels) as tokens (n, squares, 4 channels)."""
    n, height, width, channels = latents.shape
    parts = latents.reshape(n, height // SIDE, SIDE, width // SIDE, SIDE, channels)
    ordered = wx.permute_dims(parts, (0, 1, 3, 5, 2, 4))
    return ordered.reshape(n, height // SIDE * (width // SIDE), channels * SIDE**2)


def unpack(tokens: wx.Array, rows: int, columns: int) -> wx.Array:
    """Tokens (n, rows · columns, 4 channels) as latents (n, height, width, channels)."""
    n, _, cols = tokens.shape
    parts = tokens.reshape(n, rows, columns, cols // SIDE**2, SIDE, SIDE)
    ordered = wx.permute_dims(parts, (0, 1, 4, 2, 5, 3))
    return ordered.reshape(n, rows * SIDE, columns * SIDE, cols // SIDE**2)
