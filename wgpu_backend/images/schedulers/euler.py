"""Euler's method in the noise level: Karras et al. 2022, algorithms 1 and 2 without added noise.

Samples are image plus σ · noise here; the network takes them divided by √(σ² + 1). Ancestral steps
go down to less noise than the next level has, and add new noise for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images.schedulers import diffusion
from wgpu_backend.images.schedulers.schedule import Floats, Request, Schedule


def euler(settings: Settings, request: Request) -> Schedule:
    """Plan Euler's method.

    Raises
    ------
    ModelError
        A setting is unknown.
    """
    for name, known in (("interpolation_type", "linear"), ("timestep_type", "discrete")):
        kind = settings.text(name, default=known)
        if kind != known:
            raise settings.error(name, f"is {kind!r}, known is {known}")
    levels = diffusion.noise_levels(settings)
    times = diffusion.space_timesteps(settings, request.steps, default="linspace").astype(
        np.float32
    )
    sigmas = np.interp(times, np.arange(len(levels)), levels)
    spaced = diffusion.respace_sigmas(settings, sigmas[0], sigmas[-1], request.steps)
    if spaced is not None:
        sigmas, times = spaced, diffusion.find_timesteps(spaced, levels).astype(np.float32)
    sigmas = np.append(sigmas, diffusion.last_sigma(settings, levels))
    return _schedule(settings, request, times, sigmas, lambda _, to: (to, 0.0))


def euler_ancestral(settings: Settings, request: Request) -> Schedule:
    """Plan ancestral steps, each of which adds noise; raises as `euler`."""
    levels = diffusion.noise_levels(settings)
    times = diffusion.space_timesteps(settings, request.steps, default="linspace").astype(
        np.float32
    )
    sigmas = np.append(np.interp(times, np.arange(len(levels)), levels), 0.0)
    return _schedule(settings, request, times, sigmas, _down_and_up)


def _down_and_up(sigma: float, to: float) -> tuple[float, float]:
    """Return the noise level that a step goes down to, and the noise that it adds."""
    up = (to**2 * (sigma**2 - to**2) / sigma**2) ** 0.5
    return (to**2 - up**2) ** 0.5, up


def _schedule(
    settings: Settings,
    request: Request,
    times: diffusion.F32s,
    sigmas: Floats,
    part: Callable[[float, float], tuple[float, float]],
) -> Schedule:
    levels = sigmas.astype(np.float32)
    predict = diffusion.prediction(settings)

    def row(sigma: float, to: float) -> Floats:
        down, up = part(sigma, to)
        share = 1 / (sigma**2 + 1) ** 0.5
        # The network took the sample times this share; noise is relative to the image.
        picture = predict(share, sigma * share)[0] * (share, 1.0)
        slope = (np.array([1.0, 0.0]) - picture) / sigma
        return np.array([[*(np.array([1.0, 0.0]) + slope * (down - sigma)), up]])

    rows = [row(s, to) for s, to in pairwise(levels.tolist())]
    exact = levels[:-1].astype(np.float64)
    spread = settings.text("timestep_spacing", default="linspace") in ("linspace", "trailing")
    highest = float(levels.max())
    return Schedule(
        times,
        np.array(rows),
        np.stack([np.ones_like(exact), exact], 1),
        sigmas=levels,
        initial_scale=highest if spread else (highest**2 + 1) ** 0.5,
        input_scales=1 / np.sqrt(exact**2 + 1),
        first=request.first,
    )
