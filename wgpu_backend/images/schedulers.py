"""Schedulers by diffusers' names, made from the settings in a folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images.schedule import (
    KEPT,
    OUTPUT,
    SAMPLE,
    AnyFloats,
    F32s,
    Floats,
    Request,
    Schedule,
    alphas_cumprod,
    final_alpha,
    find_timesteps,
    first_step,
    last_sigma,
    noise_levels,
    prediction,
    refuse_clipping,
    respace_sigmas,
    space_timesteps,
    train_steps,
)

__all__ = [
    "CLASSES",
    "NAMES",
    "Request",
    "Schedule",
    "Scheduler",
    "first_step",
    "klein_mu",
    "linear_mu",
    "linear_sigmas",
]  # fmt: skip

# Euler's method in the noise level: Karras et al. 2022, algorithms 1 and 2 without added noise.
#
# Samples are image plus σ · noise here; the network takes them divided by √(σ² + 1). Ancestral
# steps go down to less noise than the next level has, and add new noise for the rest.


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
            raise settings.error(name, f"is {kind!r}, needs {known}")
    levels = noise_levels(settings)
    times = space_timesteps(settings, request.steps, default="linspace").astype(np.float32)
    sigmas = np.interp(times, np.arange(len(levels)), levels)
    spaced = respace_sigmas(settings, sigmas[0], sigmas[-1], request.steps)
    if spaced is not None:
        sigmas, times = spaced, find_timesteps(spaced, levels).astype(np.float32)
    sigmas = np.append(sigmas, last_sigma(settings, levels))
    return _plan_euler(settings, request, times, sigmas, lambda _, to: (to, 0.0))


def euler_ancestral(settings: Settings, request: Request) -> Schedule:
    """Plan ancestral steps, each of which adds noise; raises like `euler`."""
    levels = noise_levels(settings)
    times = space_timesteps(settings, request.steps, default="linspace").astype(np.float32)
    sigmas = np.append(np.interp(times, np.arange(len(levels)), levels), 0.0)
    return _plan_euler(settings, request, times, sigmas, _down_and_up)


def _down_and_up(sigma: float, to: float) -> tuple[float, float]:
    """Return the noise level that a step goes down to, and the noise that it adds."""
    up = (to**2 * (sigma**2 - to**2) / sigma**2) ** 0.5
    return (to**2 - up**2) ** 0.5, up


def _plan_euler(
    settings: Settings,
    request: Request,
    times: F32s,
    sigmas: Floats,
    part: Callable[[float, float], tuple[float, float]],
) -> Schedule:
    levels = sigmas.astype(np.float32)
    predict = prediction(settings)

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
        # As diffusers' `init_noise_sigma`: other spacings add the unit variance of an image.
        initial_scale=highest if spread else (highest**2 + 1) ** 0.5,
        input_scales=1 / np.sqrt(exact**2 + 1),
        first=request.first,
    )


# DDIM: Song et al. 2021, "Denoising Diffusion Implicit Models", equation 12.


def ddim(settings: Settings, request: Request) -> Schedule:
    """Plan DDIM; with `eta` 1 it is DDPM.

    Raises
    ------
    ModelError
        A setting is unknown.
    """
    # DDIM clips to -1 to 1 by default, which suits pixels, while latents go further.
    refuse_clipping(settings, clips=True)
    alphas = alphas_cumprod(settings)
    final = final_alpha(settings, alphas, default=True)
    predict = prediction(settings)
    times = np.round(space_timesteps(settings, request.steps, default="leading")).astype(np.int64)
    # diffusers steps back by this with every spacing, even where timesteps differ by more.
    back = len(alphas) // request.steps

    def row(time: int) -> Floats:
        alpha = float(alphas[time])
        before = float(alphas[time - back]) if time >= back else final
        picture, noise = predict(alpha**0.5, (1 - alpha) ** 0.5)
        # Equation 16 for `eta` 1.
        variance = (1 - before) / (1 - alpha) * (1 - alpha / before)
        added = request.eta * variance**0.5
        made = before**0.5 * picture + (1 - before - added**2) ** 0.5 * noise
        return np.array([[*made, added]])

    kept = alphas[times].astype(np.float64)
    scales = np.stack([np.sqrt(kept), np.sqrt(1 - kept)], 1)
    rows = [row(int(time)) for time in times]
    return Schedule(times, np.array(rows), scales, first=request.first)


# PNDM without its Runge-Kutta steps: Liu et al. 2022, equations 9 and 12.
#
# The first step runs twice: the network is evaluated again at its end, and the step is repeated
# from its beginning with the mean of both outputs. Later steps use up to three earlier outputs
# (Adams and Bashforth).


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
    alphas = alphas_cumprod(settings)
    final = final_alpha(settings, alphas, default=False)
    spaced = space_timesteps(settings, request.steps, default="leading")
    times = np.round(spaced).astype(np.int64)
    # The second timestep comes twice: to repeat the first step, and for its own.
    times = np.concatenate([times[:2], times[1:]])
    back = len(alphas) // request.steps
    velocity = _predicts_velocity(settings)

    def rows(i: int) -> Floats:
        count = i - request.first
        begin, end = (times[i], times[i] - back) if count != 1 else (times[i] + back, times[i])
        # With some spacings, the second timestep plus a step is past the last of training.
        alpha = float(alphas[min(begin, len(alphas) - 1)])
        before = float(alphas[end]) if end >= 0 else final
        on_sample, on_output = _plan_pndm_step(alpha, before, velocity=velocity)
        return _make_pndm_rows(max(count, 0), on_sample, on_output)

    kept = alphas[times].astype(np.float64)
    scales = np.stack([np.sqrt(kept), np.sqrt(1 - kept)], 1)
    made = [rows(i) for i in range(len(times))]
    return Schedule(times, np.array(made), scales, first=request.first)


def _predicts_velocity(settings: Settings) -> bool:
    kind = settings.text("prediction_type", default="epsilon")
    if kind not in ("epsilon", "v_prediction"):
        raise settings.error("prediction_type", f"is {kind!r}, needs one of epsilon, v_prediction")
    return kind == "v_prediction"


def _plan_pndm_step(alpha: float, before: float, *, velocity: bool) -> tuple[float, float]:
    """Return the factors of sample and output in equation 9."""
    noise, noise_before = 1 - alpha, 1 - before
    below = alpha * noise_before**0.5 + (alpha * noise * before) ** 0.5
    on_sample, on_output = (before / alpha) ** 0.5, (alpha - before) / below
    if velocity:
        return on_sample + on_output * noise**0.5, on_output * alpha**0.5
    return on_sample, on_output


def _make_pndm_rows(count: int, on_sample: float, on_output: float) -> NDArray[np.float64]:
    """Return the coefficient rows of the PNDM step that follows `count` earlier ones."""
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


# DPM-Solver++ of two outputs: Lu et al. 2022, "DPM-Solver++", algorithm 2, and its SDE form.
#
# A step combines predicted images: D₀ of this step, and D₁, their slope in λ, the logarithm of
# signal by noise. With σ the ratio of noise to image, e^(−h) is σ' / σ for h from σ to σ'.


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
    _refuse_dpm_settings(settings)
    stochastic = settings.text("algorithm_type", default="dpmsolver++") == "sde-dpmsolver++"
    levels = noise_levels(settings)
    times, sigmas = _times_and_levels(settings, request, levels)
    predict = prediction(settings)
    heun = settings.text("solver_type", default="midpoint") == "heun"
    order = settings.uint("solver_order", default=2)

    def rows(i: int) -> Floats:
        sigma, to = float(sigmas[i]), float(sigmas[i + 1])
        share = _signal_share(sigma)
        picture = predict(share, sigma * share)[0]
        single = order == 1 or i <= request.first or _ends(settings, i, request.steps)
        before = None if single else math.log(float(sigmas[i - 1]) / sigma)
        sample, newest, older, noise = _plan_dpm_step(
            sigma, to, before, heun=heun, stochastic=stochastic
        )
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


def _refuse_dpm_settings(settings: Settings) -> None:
    refuse_clipping(settings, clips=False)
    for name in _REFUSED:
        if settings.flag(name, default=False):
            raise settings.error(name, "is true, needs karras, exponential or beta sigmas")
    for name, known in (
        ("algorithm_type", ("dpmsolver++", "sde-dpmsolver++")),
        ("solver_type", ("midpoint", "heun")),
    ):
        kind = settings.text(name, default=known[0])
        if kind not in known:
            raise settings.error(name, f"is {kind!r}, needs one of {', '.join(known)}")
    if settings.uint("solver_order", default=2) not in (1, 2):
        raise settings.error("solver_order", "is neither 1 nor 2")


def _times_and_levels(
    settings: Settings, request: Request, levels: F32s
) -> tuple[NDArray[np.int64], F32s]:
    steps = request.steps
    spaced = respace_sigmas(settings, float(levels[-1]), float(levels[0]), steps)
    if spaced is None:
        times = _space_dpm_times(settings, steps, _usable(settings, levels))
        spaced = np.interp(times, np.arange(len(levels)), levels)
    else:
        times = find_timesteps(spaced, levels)
        if settings.flag("use_karras_sigmas", default=False):
            # For Karras' levels alone, as in diffusers; others lose their fractions below.
            times = np.round(times)
    sigmas = np.append(spaced, last_sigma(settings, levels)).astype(np.float32)
    return times.astype(np.int64), sigmas


def _usable(settings: Settings, levels: F32s) -> int:
    """Return the number of training steps whose λ is high enough."""
    lowest = settings.value("lambda_min_clipped")
    if not isinstance(lowest, int | float) or math.isinf(lowest):
        return len(levels)
    return int(np.sum(-np.log(levels) >= lowest))


def _space_dpm_times(settings: Settings, steps: int, count: int) -> AnyFloats:
    """Return timesteps: those of one step more, without the last, except for ``trailing``."""
    total = train_steps(settings, steps)
    kind = settings.text("timestep_spacing", default="linspace")
    if kind == "linspace":
        return np.round(np.linspace(0, count - 1, steps + 1))[:0:-1]
    if kind == "leading":
        offset = settings.uint("steps_offset", default=0)
        return (np.arange(steps + 1) * (count // (steps + 1)))[:0:-1] + float(offset)
    if kind == "trailing":
        return np.round(count - np.arange(steps) * (total / steps)) - 1.0
    raise settings.error(
        "timestep_spacing", f"is {kind!r}, needs one of linspace, leading, trailing"
    )


def _ends(settings: Settings, i: int, steps: int) -> bool:
    """Return whether a step is the last, and must use the first-order rule."""
    few = settings.flag("lower_order_final", default=True) and steps < _FEW
    ends = settings.flag("euler_at_final", default=False) or few
    ends = ends or settings.text("final_sigmas_type", default="zero") == "zero"
    return i == steps - 1 and ends


def _signal_share(sigma: float) -> float:
    return 1 / (sigma**2 + 1) ** 0.5


def _plan_dpm_step(
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
    share = _signal_share(to)
    sample = (to * share) / (sigma * _signal_share(sigma)) * (shrunk**0.5 if stochastic else 1.0)
    noise = to * share * (1 - shrunk) ** 0.5 if stochastic else 0.0
    newest = share * (1 - shrunk)
    # Equal levels have no slope.
    if not before or sigma == to:
        return sample, newest, 0.0, noise
    h = math.log(sigma / to)
    changed = share * (1 - (1 - shrunk) / (power * h)) if heun else newest / 2
    slope = changed * h / before
    return sample, newest + slope, -slope, noise


# Euler's method for flow matching: Lipman et al. 2023; Esser et al. 2024, §3.
#
# A sample is ``(1 − σ) image + σ noise``, and networks predict noise minus image, so a step is
# ``x + (σ' − σ) output``. For large images σ is shifted towards noise (Esser et al., §5.3.2).


Sigmas = AnyFloats
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
        raise settings.error("invert_sigmas", "is true, needs false")
    sigmas = _shift(settings, request.mu, _base_sigmas(settings, request))
    sigmas = _stretch(settings, sigmas)
    spaced = respace_sigmas(settings, float(sigmas[0]), float(sigmas[-1]), request.steps)
    made = np.asarray(sigmas if spaced is None else spaced).astype(np.float32)
    count = settings.uint("num_train_timesteps", default=1000)
    levels = np.append(made, np.float32(0))
    stochastic = settings.flag("stochastic_sampling", default=False)
    rows = [_make_flow_row(s, to, stochastic=stochastic) for s, to in pairwise(levels.tolist())]
    exact = made.astype(np.float64)
    return Schedule(
        made * np.float32(count),
        np.array(rows),
        np.stack([1 - exact, exact], 1),
        sigmas=levels,
        first=request.first,
    )


def _make_flow_row(sigma: float, to: float, *, stochastic: bool) -> NDArray[np.float64]:
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
        # diffusers shifts these twice: the ends here, then all sigmas between them.
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
        raise settings.error("time_shift_type", f"is {kind!r}, needs one of exponential, linear")
    factor = math.exp(mu) if kind == "exponential" else mu
    return factor / (factor + (1 / sigmas - 1))


def _stretch(settings: Settings, sigmas: Sigmas) -> Sigmas:
    """Stretch sigmas so that the last is that of the settings."""
    last = settings.number("shift_terminal", default=0.0)
    # A last sigma of 1 would make the quotient below one by 0.
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


# Defaults of diffusers' `calculate_shift`: shifts, and the numbers of tokens they belong to.
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
    # From 10 to 200 steps.
    slope = (of_200 - of_10) / 190
    return of_200 + slope * (steps - 200)


CLASSES: dict[str, Callable[[Settings, Request], Schedule]] = {
    "DDIMScheduler": ddim,
    "PNDMScheduler": pndm,
    "EulerDiscreteScheduler": euler,
    "EulerAncestralDiscreteScheduler": euler_ancestral,
    "DPMSolverMultistepScheduler": dpmpp_2m,
    "FlowMatchEulerDiscreteScheduler": flow_euler,
}
"""The functions that plan steps, by the class in model_index.json."""

_FLOW = "FlowMatchEulerDiscreteScheduler"
_DPM = "DPMSolverMultistepScheduler"
# Settings that a name without them implies; they replace those of a folder.
_PLAIN = {"use_karras_sigmas": False, "use_exponential_sigmas": False, "use_beta_sigmas": False}
NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddim": ("DDIMScheduler", {"clip_sample": False}),
    "pndm": ("PNDMScheduler", {"skip_prk_steps": True}),
    "euler": ("EulerDiscreteScheduler", _PLAIN),
    "euler-karras": ("EulerDiscreteScheduler", _PLAIN | {"use_karras_sigmas": True}),
    "euler-beta": ("EulerDiscreteScheduler", _PLAIN | {"use_beta_sigmas": True}),
    "euler-a": ("EulerAncestralDiscreteScheduler", {}),
    "dpmpp-2m": (_DPM, _PLAIN | {"algorithm_type": "dpmsolver++"}),
    "dpmpp-2m-karras": (_DPM, _PLAIN | {"use_karras_sigmas": True}),
    "dpmpp-2m-sde": (_DPM, _PLAIN | {"algorithm_type": "sde-dpmsolver++"}),
    "flow-euler": (_FLOW, {}),
}
"""The names of schedulers in requests: class, and settings that the name implies."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler with the settings of a folder.

    Parameters
    ----------
    class_name : str
        A key of `CLASSES`.
    settings : Settings
        Settings of scheduler_config.json.
    """

    class_name: str
    settings: Settings

    def plan(
        self,
        steps: int,
        *,
        first: int = 0,
        sigmas: Sequence[float] | None = None,
        mu: float | None = None,
        eta: float = 0.0,
    ) -> Schedule:
        """Plan all steps.

        Parameters
        ----------
        first : int
            Step to begin with; see `first_step`.
        sigmas : sequence of float, optional
            For flow matching: noise of each step before the shift, as `linear_sigmas`.
        mu : float, optional
            For flow matching: the shift, as from `linear_mu` or `klein_mu`.
        eta : float
            For DDIM: share of DDPM's noise that each step adds.

        Raises
        ------
        ModelError
            The class or a setting is unknown.
        OptionError
            An argument does not fit.
        """
        make = CLASSES.get(self.class_name)
        if make is None:
            raise self.settings.error(
                "_class_name", f"is {self.class_name!r}, needs one of {', '.join(CLASSES)}"
            )
        return make(self.settings, Request(steps, first, sigmas, mu, eta))

    def select(self, name: str) -> Scheduler:
        """Return another scheduler for the same model, as diffusers' ``from_config`` does.

        Parameters
        ----------
        name : str
            A key of `NAMES`.

        Raises
        ------
        OptionError
            There is no such name, or one of the two is for flow matching and the other not.
        """
        if name not in NAMES:
            raise OptionError(f"scheduler is {name!r}, needs one of {', '.join(NAMES)}")
        class_name, changes = NAMES[name]
        if (class_name == _FLOW) != (self.class_name == _FLOW):
            raise OptionError(
                f"scheduler is {name!r}, this model has {self.class_name}: one is for flow "
                "matching, the other not"
            )
        values = {**self.settings.values, **changes}
        return Scheduler(class_name, Settings(self.settings.source, values))
