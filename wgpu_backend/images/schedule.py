"""A schedule: for each step a timestep, and the coefficients of the next sample.

Every scheduler here computes the next sample, and the tensors it keeps, as sums of tensors times
numbers that are known before the first step. So a schedule consists of tables, and a step is

::

    next     =  c₀₀ sample + c₀₁ output + c₀₂ noise + c₀₃ kept₁ + …
    kept₁    =  c₁₀ sample + c₁₁ output + c₁₂ noise + c₁₃ kept₁ + …

A recorded graph of a step takes the row of coefficients as an input. It is the same for all steps,
and for all schedulers that keep the same number of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError
from wgpu_backend.files.huggingface.settings import Settings

Floats = NDArray[np.float64]
# NumPy's arrays and the package's: any type with addition, and products with numbers.
Tensor = Any
SAMPLE, OUTPUT, NOISE, KEPT = 0, 1, 2, 3
"""The columns of a step's coefficients; kept tensors are from the last one on."""
_MAX_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters of a schedule.

    Parameters
    ----------
    first : int
        First step to run, for image to image; earlier ones are skipped.
    sigmas : sequence of float, optional
        For flow matching: noise of each step before the shift.
    mu : float, optional
        For flow matching with a dynamic shift: the shift.
    eta : float
        For DDIM: share of DDPM's noise that each step adds.
    """

    steps: int
    first: int = 0
    sigmas: Sequence[float] | None = None
    mu: float | None = None
    eta: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= _MAX_STEPS:
            raise OptionError(f"steps is {self.steps}, needs 1 to {_MAX_STEPS}")
        if not 0 <= self.first < self.steps:
            raise OptionError(
                f"first step is {self.first} of {self.steps}, needs 0 to {self.steps - 1}"
            )


@dataclass
class Schedule:
    """The timesteps, and the coefficients of every step.

    Parameters
    ----------
    timesteps : (steps,), f32 or i64
        Timesteps as in diffusers; the network's argument is computed from them.
    table : (steps, 1 + kept, 3 + kept), f64
        Coefficients of each step, see the module.
    noise_scales : (steps, 2), f64
        Factors of image and noise at the beginning of each step.
    sigmas : (steps + 1,), f32 or None
        Noise of each step and after the last, for schedulers defined by sigmas.
    initial_scale : float
        Factor of the first noise.
    input_scales : (steps,), f64 or None
        Factors of the network's input; None for 1.
    first : int
        First step to run.

    Attributes
    ----------
    kept : tuple of arrays
        Tensors that the last `step` kept for the next.
    """

    timesteps: NDArray[np.float32] | NDArray[np.int64]
    table: Floats
    noise_scales: Floats
    sigmas: NDArray[np.float32] | None = None
    initial_scale: float = 1.0
    input_scales: Floats | None = None
    first: int = 0
    kept: tuple[Tensor, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        """Return the number of steps, including those before `first`."""
        return len(self.timesteps)

    @property
    def steps(self) -> range:
        """Return the indices of the steps to run."""
        return range(self.first, len(self))

    def coefficients(self, i: int) -> Floats:
        """Return the (1 + kept, 3 + kept) coefficients of step `i`: results by operands."""
        return self.table[i]

    def uses_noise(self, i: int) -> bool:
        """Return whether step `i` adds new noise."""
        return bool(self.table[i, :, NOISE].any())

    def input_scale(self, i: int) -> float:
        """Return the factor of the network's input in step `i`."""
        return 1.0 if self.input_scales is None else float(self.input_scales[i])

    def scale_input(self, x: Tensor, i: int) -> Tensor:
        """Return the network's input in step `i`."""
        scale = self.input_scale(i)
        return x if scale == 1.0 else x * scale

    def add_noise(self, picture: Tensor, noise: Tensor, i: int) -> Tensor:
        """Add the noise that step `i` expects to the latents of an image.

        Parameters
        ----------
        picture, noise : array
            Arrays of one shape; NumPy's or the package's.
        i : int
            The `len` of the schedule returns the image itself.
        """
        if i >= len(self):
            return picture
        kept, added = self.noise_scales[i]
        return picture * float(kept) + noise * float(added)

    def step(self, output: Tensor, i: int, sample: Tensor, noise: Tensor = None) -> Tensor:
        """Return the sample after step `i`.

        Parameters
        ----------
        output : array
            Output of the network, after guidance.
        i : int
            Steps run in order, from `first` on.
        sample : array
            Sample before the step.
        noise : array, optional
            Standard normal, of the sample's shape; needed where `uses_noise`.

        Raises
        ------
        OptionError
            The step adds noise and none was given.
        """
        if noise is None and self.uses_noise(i):
            raise OptionError(f"step {i} adds noise, give an array of it")
        # Tensors of an earlier run of this schedule must not enter the first step.
        kept = self.kept if i != self.first else ()
        kept += (None,) * (self.table.shape[1] - 1 - len(kept))
        made = [_sum(row, (sample, output, noise, *kept)) for row in self.table[i]]
        self.kept = tuple(made[1:])
        return made[0]


def first_step(steps: int, strength: float, *, whole: bool = True) -> int:
    """Return the first step of image to image, so that about ``steps · strength`` steps run.

    Parameters
    ----------
    strength : float
        Share of the image that is replaced, from 0 to 1.
    whole : bool
        Whether to round ``steps · strength`` down, as Stable Diffusion 1 and XL do, or up, as
        flow-matching pipelines do.

    Raises
    ------
    OptionError
        No step would run, or strength is not between 0 and 1.
    """
    made = min(steps * strength, steps)
    first = steps - int(made) if whole else int(steps - made)
    if not 0.0 <= strength <= 1.0 or first >= steps:
        raise OptionError(
            f"strength is {strength} of {steps} steps, needs at least {1 / steps:.3g} and at most 1"
        )
    return first


def _sum(row: Floats, terms: Sequence[Tensor]) -> Tensor:
    """Sum the terms times their factors; None if all factors are 0."""
    total = None
    for factor, term in zip(row.tolist(), terms, strict=True):
        if factor:
            part = term if factor == 1.0 else term * factor
            total = part if total is None else total + part
    return total


# The noise of training at each timestep, and the placement of steps in it.
#
# Ho et al. 2020, §2: an image after t steps is ``√ā_t x + √(1 − ā_t) noise``. Below are
# ā_t (`alphas_cumprod`), timesteps by their spacing (Lin et al. 2023, table 2), noise levels ``σ =
# √(1/ā − 1)`` (Karras et al. 2022), and image and noise from a network's output. Sums are in f32
# where diffusers has f32, so that tables are equal.


F32s = NDArray[np.float32]
AnyFloats = NDArray[np.floating[Any]]
# Karras et al. 2022, §3.
_RHO = 7.0
# Replaces an ā of 0.
# As in diffusers: the smallest positive f16.
_SMALLEST = 2.0**-24


def train_steps(settings: Settings, steps: int) -> int:
    """Return the number of training steps.

    Raises
    ------
    OptionError
        `steps` is larger.
    """
    count = settings.uint("num_train_timesteps", default=1000)
    if steps > count:
        raise OptionError(f"steps is {steps}, the model was trained with {count}")
    return count


def alphas_cumprod(settings: Settings) -> F32s:
    """Return the share of the image after each training step.

    Returns
    -------
    (train steps,), f32

    Raises
    ------
    ModelError
        The schedule of betas is unknown.
    """
    if "trained_betas" in settings:
        betas = np.array(settings.numbers("trained_betas"), np.float32)
    else:
        betas = _betas(settings)
    alphas = (np.float32(1) - betas).astype(np.float64)
    made = np.cumprod(alphas)
    if settings.flag("rescale_betas_zero_snr", default=False):
        made = _without_signal(made)
    return made.astype(np.float32)


def _betas(settings: Settings) -> F32s:
    count = settings.uint("num_train_timesteps", default=1000)
    low = settings.number("beta_start", default=0.0001)
    high = settings.number("beta_end", default=0.02)
    kind = settings.text("beta_schedule", default="linear")
    if kind == "linear":
        return _line(low, high, count)
    if kind == "scaled_linear":
        # Stable Diffusion's training code calls this schedule linear.
        return _line(low**0.5, high**0.5, count) ** 2
    if kind == "squaredcos_cap_v2":
        # Nichol & Dhariwal 2021, §3.2: 0.008 keeps the first betas from being too small, and
        # 0.999 bounds the last ones, where the share of the image approaches 0.
        kept = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * np.pi / 2) ** 2
        return np.minimum(1 - kept[1:] / kept[:-1], 0.999).astype(np.float32)
    raise settings.error(
        "beta_schedule", f"is {kind!r}, needs one of linear, scaled_linear, squaredcos_cap_v2"
    )


def _line(low: float, high: float, count: int) -> F32s:
    """Return equally spaced f32 numbers, counted from the nearer end, each rounded once."""
    first, last = np.float32(low), np.float32(high)
    step = np.float64((last - first) / np.float32(max(count - 1, 1)))
    places = np.arange(count)
    # As torch.linspace does, whose roundings diffusers' tables have.
    upper = last - step * (count - 1 - places)
    return np.where(places < count // 2, first + step * places, upper).astype(np.float32)


def _without_signal(made: AnyFloats) -> AnyFloats:
    """Shift and scale so that the last step is pure noise (Lin et al. 2023, algorithm 1)."""
    roots = np.sqrt(made)
    return ((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])) ** 2


def final_alpha(settings: Settings, alphas: F32s, *, default: bool) -> float:
    """Return the share of the image after the last step; `default` means all of it."""
    return 1.0 if settings.flag("set_alpha_to_one", default=default) else float(alphas[0])


def space_timesteps(settings: Settings, steps: int, *, default: str) -> AnyFloats:
    """Return the timesteps of the steps, the largest first.

    Parameters
    ----------
    default : str
        Default of ``timestep_spacing``.

    Returns
    -------
    (steps,), whole numbers except for ``linspace``

    Raises
    ------
    ModelError
        The spacing is unknown.
    """
    count = train_steps(settings, steps)
    kind = settings.text("timestep_spacing", default=default)
    if kind == "linspace":
        return np.linspace(0, count - 1, steps)[::-1]
    if kind == "leading":
        offset = settings.uint("steps_offset", default=0)
        return (np.arange(steps) * (count // steps))[::-1] + float(offset)
    if kind == "trailing":
        # Timesteps count from 0, so the last of training is `count - 1`.
        return np.round(count - np.arange(steps) * (count / steps)) - 1.0
    raise settings.error(
        "timestep_spacing", f"is {kind!r}, needs one of linspace, leading, trailing"
    )


def noise_levels(settings: Settings) -> F32s:
    """Return the ratio of noise to image after each training step; raises like `alphas_cumprod`."""
    alphas = alphas_cumprod(settings)
    if settings.flag("rescale_betas_zero_snr", default=False):
        alphas[-1] = _SMALLEST
    return np.sqrt((np.float32(1) - alphas) / alphas)


def respace_sigmas(
    settings: Settings, highest: float, lowest: float, steps: int
) -> AnyFloats | None:
    """Return sigmas in the beta, Karras or exponential schedule; None if settings name none."""
    if settings.flag("use_beta_sigmas", default=False):
        return lowest + beta_quantiles(steps) * (highest - lowest)
    ramp = np.linspace(0, 1, steps)
    if settings.flag("use_karras_sigmas", default=False):
        high, low = highest ** (1 / _RHO), lowest ** (1 / _RHO)
        return (high + ramp * (low - high)) ** _RHO
    if settings.flag("use_exponential_sigmas", default=False):
        return np.exp(np.linspace(math.log(highest), math.log(lowest), steps))
    return None


def find_timesteps(sigmas: AnyFloats, levels: F32s) -> AnyFloats:
    """Return the fractional timesteps of noise levels, interpolated by logarithms."""
    # As in diffusers; a noise level of 0 has no logarithm.
    wanted = np.log(np.maximum(sigmas, 1e-10))
    return np.interp(wanted, np.log(levels).astype(np.float64), np.arange(len(levels)))


def last_sigma(settings: Settings, levels: F32s) -> float:
    """Return the noise level after the last step.

    Raises
    ------
    ModelError
        The setting is unknown.
    """
    kind = settings.text("final_sigmas_type", default="zero")
    if kind not in ("zero", "sigma_min"):
        raise settings.error("final_sigmas_type", f"is {kind!r}, needs one of zero, sigma_min")
    return 0.0 if kind == "zero" else float(levels[0])


Prediction = Callable[[float, float], NDArray[Any]]


def prediction(settings: Settings) -> Prediction:
    """Return the conversion of the network's output to image and noise.

    Returns
    -------
    callable
        Takes the shares of image a and noise s in a sample, and returns (2, 2): the factors of
        sample and output for the image, then for the noise.

    Raises
    ------
    ModelError
        The kind of output is unknown.
    """
    kind = settings.text("prediction_type", default="epsilon")
    made = _PREDICTIONS.get(kind)
    if made is None:
        raise settings.error(
            "prediction_type", f"is {kind!r}, needs one of {', '.join(_PREDICTIONS)}"
        )
    return made


def _from_noise(a: float, s: float) -> NDArray[Any]:
    a = a or _SMALLEST**0.5
    return np.array([[1 / a, -s / a], [0.0, 1.0]])


def _from_velocity(a: float, s: float) -> NDArray[Any]:
    """Convert a velocity, a · noise − s · image (Salimans and Ho 2022, §4)."""
    return np.array([[a, -s], [s, a]])


def _from_image(a: float, s: float) -> NDArray[Any]:
    return np.array([[0.0, 1.0], [1 / s, -a / s]])


_PREDICTIONS: dict[str, Prediction] = {
    "epsilon": _from_noise,
    "v_prediction": _from_velocity,
    "sample": _from_image,
}


def refuse_clipping(settings: Settings, *, clips: bool) -> None:
    """Raise if samples are to be clipped: steps are linear sums.

    Raises
    ------
    ModelError
        The settings require it; `clips` is the default of ``clip_sample``.
    """
    for name, default in (("clip_sample", clips), ("thresholding", False)):
        if settings.flag(name, default=default):
            raise settings.error(name, "is true, only schedules of unclipped latents are known")


# Both parameters of the beta distribution, which is symmetric.
_A = 0.6
# Terms of the series: up to 1/2, each is at most half of the preceding one.
_TERMS = 60
# What remains of an interval of 1/2 is less than the rounding of f64 numbers near 1.
_HALVINGS = 60


def beta_quantiles(steps: int) -> NDArray[np.float64]:
    """Return the (steps,) quantiles of 1 down to 0: Lee et al. 2024, "Beta Sampling", §3."""
    wanted = 1 - np.linspace(0, 1, steps)
    lower = np.minimum(wanted, 1 - wanted)
    low, high = np.zeros(steps), np.full(steps, 0.5)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = _beta_share(middle) < lower
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found = np.where(lower == 0, 0.0, (low + high) / 2)
    return np.where(wanted > 0.5, 1 - found, found)


def _beta_share(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distribution function at x up to 1/2: DLMF 8.17.7, the series of ₂F₁."""
    term, total = np.ones_like(x), np.zeros_like(x)
    for k in range(_TERMS):
        total += term / (_A + k)
        term = term * x * (1 - _A + k) / (1 + k)
    whole = math.gamma(_A) ** 2 / math.gamma(2 * _A)
    return x**_A * total / whole
