"""What a scheduler plans: for each step a timestep, and how the next sample is made of tensors.

Every scheduler here makes the next sample, and what it remembers, as sums of tensors times
numbers that are known before the first step. So a plan is tables, and a step is

::

    next     =  c₀₀ sample + c₀₁ output + c₀₂ noise + c₀₃ kept₁ + …
    kept₁    =  c₁₀ sample + c₁₁ output + c₁₂ noise + c₁₃ kept₁ + …

A recorded graph of a step takes the row of coefficients as an input and stays the same over all
steps and all schedulers that keep as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError

Floats = NDArray[np.float64]
Tensor = Any  # NumPy's arrays and the package's: what adds, and multiplies with numbers
SAMPLE, OUTPUT, NOISE, KEPT = 0, 1, 2, 3
"""Columns of a step's coefficients; from the last on, what is kept."""
_MAX_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """What a schedule is asked for.

    Parameters
    ----------
    steps : int
    first : int
        Step to begin with, as image to image does; those before it are left out.
    sigmas : sequence of float, optional
        For flow matching: noise of each step, before it is shifted.
    mu : float, optional
        For flow matching with a dynamic shift: how much.
    eta : float
        For DDIM: share of the noise of DDPM that is added in each step.
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
    """Timesteps, and the coefficients of every step.

    Parameters
    ----------
    timesteps : (steps,), f32 or i64
        As the scheduler of diffusers has them; the network's argument is made of them.
    table : (steps, 1 + kept, 3 + kept), f64
        Coefficients of each step, see above.
    noise_scales : (steps, 2), f64
        What a picture and noise are multiplied by, to be where the step begins.
    sigmas : (steps + 1,), f32 or None
        Noise of each step and behind the last, where the scheduler counts in it.
    initial_scale : float
        Of the first noise.
    input_scales : (steps,), f64 or None
        What the network's input is multiplied by; None for 1.
    first : int
        Step to begin with.

    Attributes
    ----------
    kept : tuple of arrays
        What the last `step` left for the next.
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
        """How many steps there are, those before `first` among them."""
        return len(self.timesteps)

    @property
    def steps(self) -> range:
        """Indices of the steps to be made."""
        return range(self.first, len(self))

    def coefficients(self, i: int) -> Floats:
        """(1 + kept, 3 + kept) numbers of step `i`: what is made, by what it is made of."""
        return self.table[i]

    def uses_noise(self, i: int) -> bool:
        """Whether step `i` adds noise of its own."""
        return bool(self.table[i, :, NOISE].any())

    def input_scale(self, i: int) -> float:
        """What the network's input is multiplied by in step `i`."""
        return 1.0 if self.input_scales is None else float(self.input_scales[i])

    def scale_input(self, x: Tensor, i: int) -> Tensor:
        """Input of the network in step `i`."""
        scale = self.input_scale(i)
        return x if scale == 1.0 else x * scale

    def add_noise(self, picture: Tensor, noise: Tensor, i: int) -> Tensor:
        """A picture's latents with as much noise as step `i` expects.

        Parameters
        ----------
        picture, noise : array
            Of one shape; NumPy's or the package's.
        i : int
            `len` of the schedule gives the picture itself.
        """
        if i >= len(self):
            return picture
        kept, added = self.noise_scales[i]
        return picture * float(kept) + noise * float(added)

    def step(self, output: Tensor, i: int, sample: Tensor, noise: Tensor = None) -> Tensor:
        """Sample behind step `i`.

        Parameters
        ----------
        output : array
            Of the network, after guidance.
        i : int
            Steps are made in order, from `first` on.
        sample : array
            Before the step.
        noise : array, optional
            Standard normal, of the sample's shape; needed where `uses_noise`.

        Raises
        ------
        OptionError
            The step adds noise and none was given.
        """
        if noise is None and self.uses_noise(i):
            raise OptionError(f"step {i} adds noise, give an array of it")
        kept = self.kept if i != self.first else ()
        kept += (None,) * (self.table.shape[1] - 1 - len(kept))
        made = [_sum(row, (sample, output, noise, *kept)) for row in self.table[i]]
        self.kept = tuple(made[1:])
        return made[0]


def first_step(steps: int, strength: float, *, whole: bool = True) -> int:
    """Step with which image to image begins, so that about ``steps · strength`` are made.

    Parameters
    ----------
    steps : int
    strength : float
        How much of the picture is made anew, from 0 to 1.
    whole : bool
        Make ``floor(steps · strength)`` steps, as Stable Diffusion 1 and XL; otherwise one more
        where that is no whole number, as pipelines of flow matching do.

    Raises
    ------
    OptionError
        No step would be left, or strength is not within 0 and 1.
    """
    made = min(steps * strength, steps)
    first = steps - int(made) if whole else int(steps - made)
    if not 0.0 <= strength <= 1.0 or first >= steps:
        raise OptionError(
            f"strength is {strength} of {steps} steps, needs at least {1 / steps:.3g} and at most 1"
        )
    return first


def _sum(row: Floats, terms: Sequence[Tensor]) -> Tensor:
    """Sum of the terms that count; None where none does."""
    total = None
    for factor, term in zip(row.tolist(), terms, strict=True):
        if factor:
            part = term if factor == 1.0 else term * factor
            total = part if total is None else total + part
    return total
