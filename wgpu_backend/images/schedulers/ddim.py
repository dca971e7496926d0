"""DDIM: Song et al. 2021, "Denoising Diffusion Implicit Models", equation 12."""

from __future__ import annotations

import numpy as np

from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images.schedulers import diffusion
from wgpu_backend.images.schedulers.schedule import Floats, Request, Schedule


def ddim(settings: Settings, request: Request) -> Schedule:
    """Plan DDIM; with `eta` 1 it is DDPM.

    Raises
    ------
    ModelError
        A setting is unknown.
    """
    diffusion.refuse_clipping(settings, clips=True)
    alphas = diffusion.alphas_cumprod(settings)
    final = diffusion.final_alpha(settings, alphas, default=True)
    predict = diffusion.prediction(settings)
    times = np.round(diffusion.space_timesteps(settings, request.steps, default="leading")).astype(
        np.int64
    )
    back = len(alphas) // request.steps

    def row(time: int) -> Floats:
        alpha = float(alphas[time])
        before = float(alphas[time - back]) if time >= back else final
        picture, noise = predict(alpha**0.5, (1 - alpha) ** 0.5)
        variance = (1 - before) / (1 - alpha) * (1 - alpha / before)
        added = request.eta * variance**0.5
        made = before**0.5 * picture + (1 - before - added**2) ** 0.5 * noise
        return np.array([[*made, added]])

    kept = alphas[times].astype(np.float64)
    scales = np.stack([np.sqrt(kept), np.sqrt(1 - kept)], 1)
    rows = [row(int(time)) for time in times]
    return Schedule(times, np.array(rows), scales, first=request.first)
