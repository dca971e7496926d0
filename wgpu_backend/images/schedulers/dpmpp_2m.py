"""DPM-Solver++ of two outputs: Lu et al. 2022, "DPM-Solver++", algorithm 2, and its SDE form.

A step combines predicted images: D₀ of this step, and D₁, their slope in λ, the logarithm of signal
by noise. With σ the ratio of noise to image, e^(−h) is σ' / σ for h from σ to σ'.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images.schedulers import diffusion
from wgpu_backend.images.schedulers.schedule import Floats, Request, Schedule

# With fewer steps, the last one uses one output.
_FEW = 15
_REFUSED = ("use_lu_lambdas", "use_flow_sigmas", "use_dynamic_shifting")


def dpmpp_2m(settings: Settings, request: Request) -> Schedule:
    """Plan DPM++ 2M, with Karras' noise levels if the settings require it.

    Raises
    ------
    ModelError
        A setting is unknown.
    """
    _refuse(settings)
    stochastic = settings.text("algorithm_type", default="dpmsolver++") == "sde-dpmsolver++"
    levels = diffusion.noise_levels(settings)
    times, sigmas = _times_and_levels(settings, request, levels)
    predict = diffusion.prediction(settings)
    heun = settings.text("solver_type", default="midpoint") == "heun"
    order = settings.uint("solver_order", default=2)

    def rows(i: int) -> Floats:
        sigma, to = float(sigmas[i]), float(sigmas[i + 1])
        share = _share(sigma)
        picture = predict(share, sigma * share)[0]
        single = order == 1 or i <= request.first or _ends(settings, i, request.steps)
        before = None if single else math.log(float(sigmas[i - 1]) / sigma)
        sample, newest, older, noise = _step(sigma, to, before, heun=heun, stochastic=stochastic)
        made = np.zeros((2, 4))
        made[0] = [sample + newest * picture[0], newest * picture[1], noise, older]
        made[1, :2] = picture
        return made

    exact = sigmas[:-1].astype(np.float64)
    shares = 1 / np.sqrt(exact**2 + 1)
    return Schedule(
        times,
        np.array([rows(i) for i in range(request.steps)]),
        np.stack([shares, exact * shares], 1),
        sigmas=sigmas,
        first=request.first,
    )


def _refuse(settings: Settings) -> None:
    diffusion.refuse_clipping(settings, clips=False)
    for name in _REFUSED:
        if settings.flag(name, default=False):
            raise settings.error(name, "is true, known are karras, exponential and beta sigmas")
    for name, known in (
        ("algorithm_type", ("dpmsolver++", "sde-dpmsolver++")),
        ("solver_type", ("midpoint", "heun")),
    ):
        kind = settings.text(name, default=known[0])
        if kind not in known:
            raise settings.error(name, f"is {kind!r}, known are {', '.join(known)}")
    if settings.uint("solver_order", default=2) not in (1, 2):
        raise settings.error("solver_order", "is neither 1 nor 2")


def _times_and_levels(
    settings: Settings, request: Request, levels: diffusion.F32s
) -> tuple[NDArray[np.int64], diffusion.F32s]:
    steps = request.steps
    spaced = diffusion.respace_sigmas(settings, float(levels[-1]), float(levels[0]), steps)
    if spaced is None:
        times = _times(settings, steps, _usable(settings, levels))
        spaced = np.interp(times, np.arange(len(levels)), levels)
    else:
        times = diffusion.find_timesteps(spaced, levels)
        if settings.flag("use_karras_sigmas", default=False):
            times = np.round(times)
    sigmas = np.append(spaced, diffusion.last_sigma(settings, levels)).astype(np.float32)
    return times.astype(np.int64), sigmas


def _usable(settings: Settings, levels: diffusion.F32s) -> int:
    """Return the number of training steps whose λ is not too low."""
    lowest = settings.value("lambda_min_clipped")
    if not isinstance(lowest, int | float) or math.isinf(lowest):
        return len(levels)
    return int(np.sum(-np.log(levels) >= lowest))


def _times(settings: Settings, steps: int, count: int) -> diffusion.Floats:
    """Return timesteps: those of one step more, without the last, except for ``trailing``."""
    total = diffusion.train_steps(settings, steps)
    kind = settings.text("timestep_spacing", default="linspace")
    if kind == "linspace":
        return np.round(np.linspace(0, count - 1, steps + 1))[:0:-1]
    if kind == "leading":
        offset = settings.uint("steps_offset", default=0)
        return (np.arange(steps + 1) * (count // (steps + 1)))[:0:-1] + float(offset)
    if kind == "trailing":
        return np.round(count - np.arange(steps) * (total / steps)) - 1.0
    raise settings.error("timestep_spacing", f"is {kind!r}, known are linspace, leading, trailing")


def _ends(settings: Settings, i: int, steps: int) -> bool:
    """Return whether a step is the last, and therefore uses one output."""
    few = settings.flag("lower_order_final", default=True) and steps < _FEW
    ends = settings.flag("euler_at_final", default=False) or few
    ends = ends or settings.text("final_sigmas_type", default="zero") == "zero"
    return i == steps - 1 and ends


def _share(sigma: float) -> float:
    return 1 / (sigma**2 + 1) ** 0.5


def _step(
    sigma: float, to: float, before: float | None, *, heun: bool, stochastic: bool
) -> tuple[float, float, float, float]:
    """Return the factors of sample, this step's image, the preceding one's, and noise.

    Parameters
    ----------
    sigma, to : float
        Ratio of noise to image before and after the step.
    before : float or None
        Length of the preceding step in λ; None for a step of one output.
    heun, stochastic : bool
        Variant of the solver.
    """
    power = 2 if stochastic else 1
    # e^(−h), or e^(−2h).
    shrunk = (to / sigma) ** power
    share = _share(to)
    sample = (to * share) / (sigma * _share(sigma)) * (shrunk**0.5 if stochastic else 1.0)
    noise = to * share * (1 - shrunk) ** 0.5 if stochastic else 0.0
    newest = share * (1 - shrunk)
    # Equal levels have no slope.
    if not before or sigma == to:
        return sample, newest, 0.0, noise
    h = math.log(sigma / to)
    changed = share * (1 - (1 - shrunk) / (power * h)) if heun else newest / 2
    slope = changed * h / before
    return sample, newest + slope, -slope, noise
