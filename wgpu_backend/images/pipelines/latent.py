"""Pipelines over the latents of `AutoencoderKL`: from pictures, to pictures, and inpainting.

Latents are (n, height, width, channels) inside and (n, channels, height, width) where diffusers
has them. Meng et al. 2022, "SDEdit", §3, for pictures that are begun with.
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
from wgpu_backend.images.schedulers import Schedule, first_step
from wgpu_backend.images.tiling import run_tiled, tile_side

TINY = "taesd"  # folder of a tiny autoencoder beside the components


class LatentPipeline(Pipeline):
    """A pipeline with `AutoencoderKL` as its ``vae``.

    Attributes
    ----------
    denoiser : str
        The component that steps call.
    tile : int
        Latents along the side of a tile: larger pictures go through the autoencoder in tiles.
    """

    denoiser: ClassVar[str] = "unet"
    native: ClassVar[int] = 64  # latents along a side, where config.json does not say

    def __init__(self, folder: PipelineFolder) -> None:
        super().__init__(folder)
        self._decode = compile_method(self._decode_scaled)
        self._encode = compile_method(self._moments)
        self._tiny: Any = None
        if (folder.path / TINY).is_dir():
            self._tiny = open_network(Component(folder.path / TINY, TINY, "AutoencoderTiny"))
        self.multiple = self.vae.factor * self.networks[self.denoiser].patch
        self.tile = tile_side(self.session, self.vae.factor, self.vae.widest)

    @property
    def vae(self) -> Any:  # noqa: ANN401  an autoencoder of some file of models
        """The autoencoder."""
        return self.networks["vae"]

    def close(self) -> None:
        """Give back memory and files; again is harmless."""
        super().close()
        self._tiny = None

    def forget(self) -> None:
        """Give back the memory of what was traced; the next picture is traced anew."""
        super().forget()
        self._decode.clear()
        self._encode.clear()

    # Sizes.

    def default_side(self) -> int:
        """Pixels along the side of a picture of no given size."""
        side = self.folder[self.denoiser].settings.uint("sample_size", default=self.native)
        return side * self.vae.factor

    def picture_size(self, request: Request) -> tuple[int, int]:
        """Height and width; those of the picture that is begun with, where it is not masked."""
        side = self.default_side()
        if request.image is None or request.mask_image is not None:
            return self.choose_size(request, (side, side))
        given = pictures.load_picture(request.image).size
        width, height = pictures.floor_size(given, self.multiple)
        return self.choose_size(request, (height, width))

    # Schedules and first latents.

    def plan(self, request: Request) -> Schedule:
        """All steps, or the last of them where a picture is begun with."""
        steps = request.num_inference_steps or self.steps
        scheduler = self.choose_scheduler(request)
        if request.image is None:
            return scheduler.plan(steps)
        strength = self.get_strength(request)
        schedule = scheduler.plan(steps)
        schedule.first = len(schedule) - (steps - first_step(steps, strength))
        return schedule

    def get_strength(self, request: Request) -> float:
        """Share of the steps that are made; all where a mask says what stays."""
        if request.strength is not None:
            return request.strength
        return 1.0 if request.mask_image is not None else self.strength

    def begin(
        self, request: Request, schedule: Schedule, draw: Draw
    ) -> tuple[wx.Array, Conditions]:
        """First latents, and what steps read of the picture that is begun with."""
        if self.is_inpainting and request.mask_image is None:
            raise OptionError(
                f"{self.folder.path}: paints parts of pictures, give image and mask_image"
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
        """First latents, and what inpainting reads."""
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
        """Whether the network reads mask and picture, and was trained to paint."""
        return self.networks[self.denoiser].channels > self.vae.channels

    def _first_noise(self, request: Request, shape: tuple[int, ...], draw: Draw) -> wx.Array:
        if request.latents is None:
            return wx.array(last(draw(shape).astype(np.float32)))
        given = np.asarray(request.latents, np.float32)
        if given.shape != shape:
            raise OptionError(f"latents are {given.shape}, needs {shape}")
        return wx.array(last(given))

    def draw_like(self, latents: wx.Array, draw: Draw) -> wx.Array:
        """Standard normal numbers for latents, channels before rows as diffusers draws them."""
        n, height, width, channels = latents.shape
        return wx.array(last(draw((n, channels, height, width)).astype(np.float32)))

    def after_step(
        self, latents: wx.Array, numbers: Conditions, conditions: Conditions
    ) -> wx.Array:
        """Latents, with the known picture where the mask is black, as noisy as they are."""
        if "mask" not in conditions:
            return latents
        shares, mask = numbers["onward"], conditions["mask"]
        known = conditions["known"] * shares[0] + conditions["noise"] * shares[1]
        return (1.0 - mask) * known + mask * latents

    # The autoencoder.

    def encode(self, picture: Floats, draw: Draw) -> wx.Array:
        """Latents of a picture (1, 3, height, width), drawn from what the encoder says."""
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
        """Picture (n, height, width, 3) from -1 to 1, not cut."""
        factor = self.vae.factor
        return run_tiled(latents.numpy(), self._decode, self.tile, lambda side: side * factor)

    def _moments(self, picture: wx.Array) -> tuple[wx.Array, wx.Array]:
        mean, logvar = self.vae.encode(picture)
        return mean, logvar

    def _decode_scaled(self, latents: wx.Array) -> wx.Array:
        return self.vae.decode(latents * (1 / self.vae.scale) + self.vae.shift)

    def preview(self, latents: wx.Array) -> Floats:
        """Picture of the tiny autoencoder where there is one."""
        return self.decode(latents) if self._tiny is None else self._tiny.decode(latents).numpy()

    def export_latents(self, latents: wx.Array) -> Floats:
        """Latents (n, channels, height, width)."""
        return first(latents.numpy())


def last(x: Floats) -> Floats:
    """Channels behind rows."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def first(x: Floats) -> Floats:
    """Channels before rows."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def apply_guidance(output: wx.Array, conditions: Conditions) -> wx.Array:
    """Output of a batch [negative, positive] after guidance: Ho & Salimans 2022, eq. 6."""
    if "guidance" not in conditions:
        return output
    negative, positive = output.split(2)
    return negative + conditions["guidance"] * (positive - negative)


def twice(x: wx.Array, conditions: Conditions) -> wx.Array:
    """Latents once for the negative prompt and once for the prompt, where there is guidance."""
    return wx.concat([x, x]) if "guidance" in conditions else x
