"""Euler's method for flow matching: Lipman et al. 2023; Esser et al. 2024, §3.

A sample is ``(1 − σ) image + σ noise``, and networks predict noise minus image, so a step is
``x + (σ' − σ) output``. For large images σ is shifted towards noise (Esser et al., §5.3.2).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images.schedulers import diffusion
from wgpu_backend.images.schedulers.schedule import Request, Schedule

Sigmas = diffusion.Floats
# Tokens.
_LONG = 4300


def flow_euler(settings: Settings, request: Request) -> Schedule:
    """Plan Euler's method for flow matching.

    Raises
    ------
    ModelError
        A setting is unknown.
    OptionError
        `mu` or `sigmas` do not fit.
    """
    if settings.flag("invert_sigmas", default=False):
        raise settings.error("invert_sigmas", "is true, known are sigmas that fall")
    sigmas = _shift(settings, request.mu, _base_sigmas(settings, request))
    sigmas = _stretch(settings, sigmas)
    spaced = diffusion.respace_sigmas(settings, float(sigmas[0]), float(sigmas[-1]), request.steps)
    made = np.asarray(sigmas if spaced is None else spaced).astype(np.float32)
    count = settings.uint("num_train_timesteps", default=1000)
    levels = np.append(made, np.float32(0))
    stochastic = settings.flag("stochastic_sampling", default=False)
    rows = [_row(s, to, stochastic=stochastic) for s, to in pairwise(levels.tolist())]
    exact = made.astype(np.float64)
    return Schedule(
        made * np.float32(count),
        np.array(rows),
        np.stack([1 - exact, exact], 1),
        sigmas=levels,
        first=request.first,
    )


def _row(sigma: float, to: float, *, stochastic: bool) -> NDArray[np.float64]:
    # A stochastic step goes to the image, and adds new noise.
    if stochastic:
        return np.array([[1 - to, -(1 - to) * sigma, to]])
    return np.array([[1.0, to - sigma, 0.0]])


def _base_sigmas(settings: Settings, request: Request) -> Sigmas:
    """Return the sigmas before the shift: those of the request, or the training's."""
    if request.sigmas is not None:
        if len(request.sigmas) != request.steps:
            raise OptionError(f"{len(request.sigmas)} sigmas for {request.steps} steps")
        return np.array(request.sigmas, np.float32)
    count = settings.uint("num_train_timesteps", default=1000)
    ends = np.array([count, 1], np.float32) / np.float32(count)
    if not settings.flag("use_dynamic_shifting", default=False):
        ends = _static(settings, ends)
    highest, lowest = float(ends[0]) * count, float(ends[1]) * count
    return np.linspace(highest, lowest, request.steps) / count


def _static(settings: Settings, sigmas: Sigmas) -> Sigmas:
    shift = settings.number("shift", default=1.0)
    made: Sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
    return made


def _shift(settings: Settings, mu: float | None, sigmas: Sigmas) -> Sigmas:
    if not settings.flag("use_dynamic_shifting", default=False):
        return _static(settings, sigmas)
    if mu is None:
        raise OptionError("scheduler: the shift depends on the image's size, give mu")
    kind = settings.text("time_shift_type", default="exponential")
    if kind not in ("exponential", "linear"):
        raise settings.error("time_shift_type", f"is {kind!r}, known are exponential, linear")
    factor = math.exp(mu) if kind == "exponential" else mu
    return factor / (factor + (1 / sigmas - 1))


def _stretch(settings: Settings, sigmas: Sigmas) -> Sigmas:
    """Stretch sigmas so that the last is that of the settings."""
    last = settings.number("shift_terminal", default=0.0)
    if not last or sigmas[-1] == 1:
        return sigmas
    return 1 - (1 - sigmas) * ((1 - last) / (1 - sigmas[-1]))


def linear_sigmas(steps: int) -> list[float]:
    """Return sigmas from 1 to ``1 / steps``, as for FLUX, Qwen-Image and Z-Image."""
    return np.linspace(1.0, 1 / steps, steps).tolist()


def linear_mu(settings: Settings, tokens: int) -> float:
    """Return the shift of sigmas, linear in the tokens: FLUX.1 and Qwen-Image.

    Parameters
    ----------
    tokens : int
        Number of the image's tokens.
    """
    low, high = (settings.number(f"{end}_shift", default=d) for end, d in _SHIFTS)
    few, many = (settings.uint(f"{end}_image_seq_len", default=d) for end, d in _TOKENS)
    slope = (high - low) / (many - few)
    return tokens * slope + (low - slope * few)


_SHIFTS = (("base", 0.5), ("max", 1.15))
_TOKENS = (("base", 256), ("max", 4096))


def klein_mu(tokens: int, steps: int) -> float:
    """Return the shift of FLUX.2's sigmas: its authors' fit in tokens and steps.

    Two lines in the number of tokens, for 10 and 200 steps, with linear interpolation in steps;
    beyond 4,300 tokens the line for 200.
    """
    of_200 = 0.00016927 * tokens + 0.45666666
    if tokens > _LONG:
        return of_200
    of_10 = 8.73809524e-05 * tokens + 1.89833333
    slope = (of_200 - of_10) / 190
    return of_200 + slope * (steps - 200)
