"""PNDM without its Runge-Kutta steps: Liu et al. 2022, equations 9 and 12.

The first step runs twice: the network is evaluated again at its end, and the step is repeated from
its beginning with the mean of both outputs. Later steps use up to three earlier outputs (Adams and
Bashforth).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images.schedulers import diffusion
from wgpu_backend.images.schedulers.schedule import (
    KEPT,
    OUTPUT,
    SAMPLE,
    Floats,
    Request,
    Schedule,
)

# Weights of the newest output and of earlier ones, by the number of outputs.
_WEIGHTS = (
    (1.0,),
    (3 / 2, -1 / 2),
    (23 / 12, -16 / 12, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
# Column of the sample at the beginning of the first step.
_BEGINNING = KEPT + 3
_KEPT = 4


def pndm(settings: Settings, request: Request) -> Schedule:
    """Plan PNDM, which evaluates the network once more than there are steps.

    Raises
    ------
    ModelError
        A setting is unknown.
    """
    if not settings.flag("skip_prk_steps", default=False):
        raise settings.error("skip_prk_steps", "is false, Runge-Kutta steps are not known")
    alphas = diffusion.alphas_cumprod(settings)
    final = diffusion.final_alpha(settings, alphas, default=False)
    spaced = diffusion.space_timesteps(settings, request.steps, default="leading")
    times = np.round(spaced).astype(np.int64)
    times = np.concatenate([times[:2], times[1:]])
    back = len(alphas) // request.steps
    velocity = _predicts_velocity(settings)

    def rows(i: int) -> Floats:
        count = i - request.first
        begin, end = (times[i], times[i] - back) if count != 1 else (times[i] + back, times[i])
        alpha = float(alphas[min(begin, len(alphas) - 1)])
        before = float(alphas[end]) if end >= 0 else final
        on_sample, on_output = _step(alpha, before, velocity=velocity)
        return _rows(max(count, 0), on_sample, on_output)

    kept = alphas[times].astype(np.float64)
    scales = np.stack([np.sqrt(kept), np.sqrt(1 - kept)], 1)
    made = [rows(i) for i in range(len(times))]
    return Schedule(times, np.array(made), scales, first=request.first)


def _predicts_velocity(settings: Settings) -> bool:
    kind = settings.text("prediction_type", default="epsilon")
    if kind not in ("epsilon", "v_prediction"):
        raise settings.error("prediction_type", f"is {kind!r}, known are epsilon, v_prediction")
    return kind == "v_prediction"


def _step(alpha: float, before: float, *, velocity: bool) -> tuple[float, float]:
    """Return the factors of sample and output in equation 9."""
    noise, noise_before = 1 - alpha, 1 - before
    below = alpha * noise_before**0.5 + (alpha * noise * before) ** 0.5
    on_sample, on_output = (before / alpha) ** 0.5, (alpha - before) / below
    if velocity:
        return on_sample + on_output * noise**0.5, on_output * alpha**0.5
    return on_sample, on_output


def _rows(count: int, on_sample: float, on_output: float) -> NDArray[np.float64]:
    """Return the rows of the step after `count` others."""
    made = np.zeros((1 + _KEPT, KEPT + _KEPT))
    again = count == 1
    made[0, _BEGINNING if again else SAMPLE] = on_sample
    weights = (0.5, 0.5) if again else _WEIGHTS[min(max(count - 1, 0), 3)]
    columns = (OUTPUT, KEPT, KEPT + 1, KEPT + 2)
    for column, weight in zip(columns, weights, strict=False):
        made[0, column] = on_output * weight
    # The repeated step's output is used for the mean only.
    if again:
        made[1, KEPT] = 1.0
    else:
        made[1, OUTPUT] = 1.0
        made[2, KEPT] = float(count > 1)
        made[3, KEPT + 1] = float(count > 2)
    made[4, SAMPLE] = float(count == 0)
    return made
