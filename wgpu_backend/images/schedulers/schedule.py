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

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError

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
    """Sum the terms with factors; None if there are none."""
    total = None
    for factor, term in zip(row.tolist(), terms, strict=True):
        if factor:
            part = term if factor == 1.0 else term * factor
            total = part if total is None else total + part
    return total
