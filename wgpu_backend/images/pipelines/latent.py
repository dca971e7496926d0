"""Pipelines over the latents of `AutoencoderKL`: text to image, image to image, and inpainting.

Latents are (n, height, width, channels) here, and (n, channels, height, width) in diffusers'
layout. Meng et al. 2022, "SDEdit", §3, for image to image.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.errors import OptionError
from wgpu_backend.images import pictures
from wgpu_backend.images.folder import Component, PipelineFolder
from wgpu_backend.images.networks import open_network
from wgpu_backend.images.pipelines.pipeline import Conditions, Pipeline, compile_method
from wgpu_backend.images.requests import Draw, Floats, Request
from wgpu_backend.images.schedule import Schedule, first_step
from wgpu_backend.images.tiling import run_tiled, tile_side

# Folder of a tiny autoencoder, next to those of the components.
TINY = "taesd"


class LatentPipeline(Pipeline):
    """A pipeline with `AutoencoderKL` as its ``vae``.

    Attributes
    ----------
    denoiser : str
        Component that steps call.
    tile : int
        Latents along the side of a tile: larger images are encoded and decoded in tiles.
    """

    denoiser: ClassVar[str] = "unet"
    # Default latents along a side, if config.json has no value.
    native: ClassVar[int] = 64

    def __init__(self, folder: PipelineFolder, *, exact: bool = False) -> None:
        super().__init__(folder, exact=exact)
        self._decode = compile_method(self._decode_scaled, exact=exact)
        self._encode = compile_method(self._moments, exact=exact)
        self._tiny: Any = None
        if (folder.path / TINY).is_dir():
            self._tiny = open_network(Component(folder.path / TINY, TINY, "AutoencoderTiny"))
        self.multiple = self.vae.factor * self.networks[self.denoiser].patch
        self.tile = tile_side(self.session, self.vae.factor, self.vae.widest)

    @property
    def vae(self) -> Any:  # noqa: ANN401  an autoencoder of some file of models
        """Return the autoencoder."""
        return self.networks["vae"]

    def close(self) -> None:
        """Release memory and files; calling it again is harmless."""
        super().close()
        self._tiny = None

    def forget(self) -> None:
        """Release the memory of traced steps; the next image traces them again."""
        super().forget()
        self._decode.clear()
        self._encode.clear()

    # Sizes.

    def default_side(self) -> int:
        """Return the default side of an image, in pixels."""
        side = self.folder[self.denoiser].settings.uint("sample_size", default=self.native)
        return side * self.vae.factor

    def picture_size(self, request: Request) -> tuple[int, int]:
        """Return height and width; by default those of the source image without a mask."""
        side = self.default_side()
        if request.image is None or request.mask_image is not None:
            return self.choose_size(request, (side, side))
        given = pictures.load_picture(request.image).size
        width, height = pictures.floor_size(given, self.multiple)
        return self.choose_size(request, (height, width))

    # Schedules and first latents.

    def plan(self, request: Request) -> Schedule:
        """Return the schedule: all steps, or the last of them for image to image."""
        steps = request.num_inference_steps or self.steps
        scheduler = self.choose_scheduler(request)
        if request.image is None:
            return scheduler.plan(steps)
        strength = self.get_strength(request)
        schedule = scheduler.plan(steps)
        schedule.first = len(schedule) - (steps - first_step(steps, strength))
        return schedule

    def get_strength(self, request: Request) -> float:
        """Return the share of steps to run: the request's, else 1 with a mask, else `strength`."""
        if request.strength is not None:
            return request.strength
        return 1.0 if request.mask_image is not None else self.strength

    def begin(
        self, request: Request, schedule: Schedule, draw: Draw
    ) -> tuple[wx.Array, Conditions]:
        """Return the first latents, and the inputs of steps from the source image."""
        if self.is_inpainting and request.mask_image is None:
            raise OptionError(
                f"{self.folder.path}: is an inpainting model, give image and mask_image"
            )
        height, width = self.picture_size(request)
        factor = self.vae.factor
        shape = (1, self.vae.channels, height // factor, width // factor)
        if request.image is None:
            noise = self._first_noise(request, shape, draw)
            return noise * schedule.initial_scale, {}
        picture = pictures.encoder_input(
            pictures.resize(pictures.load_picture(request.image), width, height)
        )
        if request.mask_image is None:
            known = self.encode(picture, draw)
            noise = self._first_noise(request, shape, draw)
            if request.latents is not None:
                return noise * schedule.initial_scale, {}
            return schedule.add_noise(known, noise, schedule.first), {}
        mask = pictures.load_mask(request.mask_image).resize((width, height))
        return self._begin_inpainting(request, schedule, draw, picture, pictures.mask_input(mask))

    def _begin_inpainting(
        self, request: Request, schedule: Schedule, draw: Draw, picture: Floats, mask: Floats
    ) -> tuple[wx.Array, Conditions]:
        """Return the first latents, and the inputs for inpainting."""
        factor = self.vae.factor
        height, width = picture.shape[2] // factor, picture.shape[3] // factor
        small = wx.array(last(pictures.latent_mask(mask, height, width)))
        shape = (1, self.vae.channels, height, width)
        is_whole = schedule.first == 0 or request.latents is not None
        known = None if self.is_inpainting and is_whole else self.encode(picture, draw)
        noise = self._first_noise(request, shape, draw)
        latents = noise * schedule.initial_scale
        if known is not None and not is_whole:
            latents = schedule.add_noise(known, noise, schedule.first)
        if self.is_inpainting:
            seen = self.encode(picture * (mask < 0.5), draw)
            return latents, {"painted": wx.concat([small, seen], axis=-1)}
        assert known is not None
        return latents, {"mask": small, "known": known, "noise": noise}

    @property
    def is_inpainting(self) -> bool:
        """Return whether the network takes mask and image, and was trained to inpaint."""
        return self.networks[self.denoiser].channels > self.vae.channels

    def _first_noise(self, request: Request, shape: tuple[int, ...], draw: Draw) -> wx.Array:
        if request.latents is None:
            return wx.array(last(draw(shape).astype(np.float32)))
        given = np.asarray(request.latents, np.float32)
        if given.shape != shape:
            raise OptionError(f"latents are {given.shape}, needs {shape}")
        return wx.array(last(given))

    def draw_like(self, latents: wx.Array, draw: Draw) -> wx.Array:
        """Draw standard normal numbers for latents, channels before rows as in diffusers."""
        n, height, width, channels = latents.shape
        return wx.array(last(draw((n, channels, height, width)).astype(np.float32)))

    def after_step(
        self, latents: wx.Array, numbers: Conditions, conditions: Conditions
    ) -> wx.Array:
        """Restore the known image where the mask is black, with the step's noise."""
        if "mask" not in conditions:
            return latents
        shares, mask = numbers["onward"], conditions["mask"]
        known = conditions["known"] * shares[0] + conditions["noise"] * shares[1]
        return (1.0 - mask) * known + mask * latents

    # The autoencoder.

    def encode(self, picture: Floats, draw: Draw) -> wx.Array:
        """Sample the latents of an image (1, 3, height, width) from the encoder's result."""
        factor, tile = self.vae.factor, self.tile * self.vae.factor
        both = run_tiled(
            last(picture),
            lambda x: wx.concat(list(self._encode(x)), axis=-1),
            tile,
            lambda side: side // factor,
        )
        mean, logvar = np.split(both, 2, axis=-1)
        noise = last(draw(first(mean).shape).astype(np.float32))
        z = mean + np.exp(0.5 * logvar) * noise
        return wx.array((z - np.float32(self.vae.shift)) * np.float32(self.vae.scale))

    def decode(self, latents: wx.Array) -> Floats:
        """Decode latents to an image (n, height, width, 3) from -1 to 1, not clipped."""
        factor = self.vae.factor
        return run_tiled(latents.numpy(), self._decode, self.tile, lambda side: side * factor)

    def _moments(self, picture: wx.Array) -> tuple[wx.Array, wx.Array]:
        mean, logvar = self.vae.encode(picture)
        return mean, logvar

    def _decode_scaled(self, latents: wx.Array) -> wx.Array:
        return self.vae.decode(latents * (1 / self.vae.scale) + self.vae.shift)

    def preview(self, latents: wx.Array) -> Floats:
        """Decode with the tiny autoencoder, if there is one."""
        return self.decode(latents) if self._tiny is None else self._tiny.decode(latents).numpy()

    def export_latents(self, latents: wx.Array) -> Floats:
        """Return latents as (n, channels, height, width)."""
        return first(latents.numpy())


def last(x: Floats) -> Floats:
    """Move the channel axis from second to last place."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def first(x: Floats) -> Floats:
    """Move the channel axis from last to second place."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def apply_guidance(output: wx.Array, conditions: Conditions) -> wx.Array:
    """Guide the output of a batch [negative, positive]: Ho & Salimans 2022, eq. 6."""
    if "guidance" not in conditions:
        return output
    negative, positive = output.split(2)
    return negative + conditions["guidance"] * (positive - negative)


def twice(x: wx.Array, conditions: Conditions) -> wx.Array:
    """Repeat latents for the negative prompt and the prompt, if there is guidance."""
    return wx.concat([x, x]) if "guidance" in conditions else x
