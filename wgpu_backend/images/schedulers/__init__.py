"""Schedulers by diffusers' names, made from the settings in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wgpu_backend.errors import OptionError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images.schedulers.ddim import ddim
from wgpu_backend.images.schedulers.dpmpp_2m import dpmpp_2m
from wgpu_backend.images.schedulers.euler import euler, euler_ancestral
from wgpu_backend.images.schedulers.flow_euler import (
    flow_euler,
    klein_mu,
    linear_mu,
    linear_sigmas,
)
from wgpu_backend.images.schedulers.pndm import pndm
from wgpu_backend.images.schedulers.schedule import Request, Schedule, first_step

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
                "_class_name", f"is {self.class_name!r}, known are {', '.join(CLASSES)}"
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
