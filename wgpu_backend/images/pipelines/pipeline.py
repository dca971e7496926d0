"""What pipelines have in common: steps as one compiled function, seeds, previews, pictures.

A step is traced once for each form of its arguments and replayed then; the schedule's numbers,
the guidance's scale and the text are arguments, so that neither another prompt nor another step
runs the network's code again. What a pipeline does is in a few methods:

==================  ================================================================
`conditions`        the texts, and whatever else steps read: a dictionary of arrays
`plan`              the schedule
`begin`             the first latents
`predict`           the network's output after guidance; traced
`after_step`        a change of latents after a step; traced
`decode`            a picture of the last latents
==================  ================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from operator import add
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakMethod

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.array import devices
from wgpu_backend.array.compiling import Compiled
from wgpu_backend.array.nn import Linear, Slot
from wgpu_backend.errors import ContextError, OptionError
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.lora import apply_changes, read_changes
from wgpu_backend.images.networks import open_network
from wgpu_backend.images.pictures import to_picture
from wgpu_backend.images.prompts import PromptTokenizer, open_prompt_tokenizer
from wgpu_backend.images.requests import (
    MAX_SIDE,
    SEEDS,
    Draw,
    Floats,
    Generated,
    Request,
    Step,
    check_draw,
    make_draw,
)
from wgpu_backend.images.schedulers import Schedule, Scheduler
from wgpu_backend.images.weights import reload_slot

Conditions = dict[str, wx.Array]
R = TypeVar("R")


class Pipeline(ABC):
    """Pictures of texts, by the networks of one folder.

    Parameters
    ----------
    folder : PipelineFolder
        Open until the pipeline is closed.

    Attributes
    ----------
    networks : dict of str to Module
        By the component's name.
    tokenizers : dict of str to PromptTokenizer
        Likewise.
    scheduler : Scheduler
    """

    steps: ClassVar[int] = 50  # unless a request says how many
    guidance: ClassVar[float] = 7.5
    strength: ClassVar[float] = 0.8
    multiple: int = 8  # that sides of pictures have to be of

    def __init__(self, folder: PipelineFolder) -> None:
        self.folder = folder
        self.session = devices.session()
        self.networks: dict[str, Any] = {}
        self.tokenizers: dict[str, PromptTokenizer] = {}
        for name, component in folder.components.items():
            if name.startswith("tokenizer"):
                self.tokenizers[name] = open_prompt_tokenizer(folder[name].folder)
            elif name in self.parts:
                self.networks[name] = open_network(folder[component.name])
        scheduler = folder["scheduler"]
        self.scheduler = Scheduler(scheduler.class_name, scheduler.settings)
        self._step = compile_method(self._one_step)
        self._size: tuple[int, ...] = ()  # of the latents that were last made
        self._changed: dict[tuple[str, str], Slot] = {}  # what adapters changed
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder.path)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def parts(self) -> tuple[str, ...]:
        """Components that are networks of this pipeline."""
        return ("text_encoder", "text_encoder_2", "text_encoder_3", "unet", "transformer", "vae")

    def network(self, name: str) -> Any:  # noqa: ANN401  networks are called each in its way
        """Network of a component.

        Raises
        ------
        ModelError
            The folder has none.
        """
        if name not in self.networks:
            self.networks[name] = open_network(self.folder[name])
        return self.networks[name]

    def load_lora_weights(self, path: str | Path, scale: float = 1.0) -> None:
        """Add an adapter of low rank to the weights.

        Parameters
        ----------
        path : path
            Safetensors with names of kohya's scripts, peft's or diffusers'.
        scale : float
            How much of it.

        Raises
        ------
        ModelError
            The file is damaged or for another model; no weight was changed.
        """
        with devices.preferring(self.session):
            changes = read_changes(path, self.networks)
            # Before the first weight changes: what was traced has the old ones.
            self._step.clear()
            self._changed.update({(c.network, c.slot.path): c.slot for c in changes})
            apply_changes(changes, scale)

    def unload_lora_weights(self) -> None:
        """Read all weights that adapters changed anew."""
        with devices.preferring(self.session):
            self._step.clear()
            for (name, _), slot in self._changed.items():
                if isinstance(slot.module, Linear):
                    slot.module.remove_low_rank()
                if not slot.array.dtype.quantised:
                    reload_slot(self.folder[name], self.networks[name], slot)
        self._changed.clear()

    def forget(self) -> None:
        """Give back the memory of what was traced; the next picture is traced anew."""
        self._step.clear()

    def close(self) -> None:
        """Give back memory and files; again is harmless."""
        if not self._closed:
            self._closed = True
            self.forget()
            self.networks.clear()
            self.folder.close()

    # What is asked for.

    def generate(
        self,
        prompt: str,
        negative_prompt: str | None = None,
        **options: Any,  # noqa: ANN401  those of `Request`
    ) -> Generated:
        """Make pictures of a text.

        Parameters
        ----------
        prompt, negative_prompt, options
            See `wgpu_backend.images.requests.Request`.

        Raises
        ------
        OptionError
            An argument is out of its range, or this pipeline has no use for it.
        ContextError
            The pipeline is closed.
        """
        if self._closed:
            raise ContextError(f"{self!r}: it is closed")
        try:
            request = Request(prompt, negative_prompt, **options)
        except TypeError as error:
            raise OptionError(f"generate: {str(error).partition('() ')[2]}") from None
        with devices.preferring(self.session):
            return self._generate(request)

    def _generate(self, request: Request) -> Generated:
        conditions = self.conditions(request)
        count = request.num_images_per_prompt
        seeds: list[int] = []
        draws = [check_draw(request.generator)] * count if request.generator else []
        if request.generator is None:
            first = _fresh_seed() if request.seed is None else request.seed
            seeds = [(first + i) % SEEDS for i in range(count)]
            draws = [make_draw(seed) for seed in seeds]
        made = [self._one(request, conditions, draw) for draw in draws]
        values = np.concatenate(made)
        is_pil = request.output_type == "pil"
        return Generated([to_picture(v) for v in values] if is_pil else values, seeds)

    def _one(self, request: Request, conditions: Conditions, draw: Draw) -> Floats:
        """A picture, (1, height, width, 3) from 0 to 1; or its latents."""
        schedule = self.plan(request)
        latents, more = self.begin(request, schedule, draw)
        if latents.shape != self._size:
            # What was traced for another size has memory of its own.
            self.forget()
            self._size = latents.shape
        latents = self._run_steps(request, schedule, latents, {**conditions, **more}, draw)
        if request.output_type == "latent":
            return self.export_latents(latents)
        return np.clip(self.decode(latents) * 0.5 + 0.5, 0, 1)

    def _run_steps(
        self,
        request: Request,
        schedule: Schedule,
        latents: wx.Array,
        conditions: Conditions,
        draw: Draw,
    ) -> wx.Array:
        """Latents behind all steps."""
        nothing = wx.zeros(latents.shape)
        kept: tuple[wx.Array, ...] = (nothing,) * (schedule.table.shape[1] - 1)
        for number, i in enumerate(schedule.steps):
            noise = nothing
            if schedule.uses_noise(i):
                noise = self.draw_like(latents, draw)
            numbers = {k: wx.array(v) for k, v in self.numbers(schedule, i).items()}
            latents, kept = self._step(latents, kept, noise, numbers, conditions)
            if request.callback is not None:
                request.callback(self._make_step(schedule, number, i, latents))
        return latents

    def _make_step(self, schedule: Schedule, number: int, i: int, latents: wx.Array) -> Step:
        timestep, count = float(schedule.timesteps[i]), len(schedule.steps)
        return Step(number, count, timestep, latents, lambda: self._preview(latents))

    def _preview(self, latents: wx.Array) -> Floats:
        with devices.preferring(self.session):
            return np.clip(self.preview(latents)[0] * 0.5 + 0.5, 0, 1)

    def numbers(self, schedule: Schedule, i: int) -> dict[str, Floats]:
        """Numbers of step `i` that are arguments of it, f32.

        The default has ``coefficients`` (1 + kept, 3 + kept), ``scale`` () of the input,
        ``timestep`` (1,), and ``onward`` (2,): shares of picture and noise behind the step.
        """
        behind = schedule.noise_scales[i + 1] if i + 1 < len(schedule) else (1.0, 0.0)
        return {
            "coefficients": schedule.coefficients(i).astype(np.float32),
            "scale": np.array(schedule.input_scale(i), np.float32),
            "timestep": schedule.timesteps[i : i + 1].astype(np.float32),
            "onward": np.array(behind, np.float32),
        }

    def _one_step(
        self,
        latents: wx.Array,
        kept: tuple[wx.Array, ...],
        noise: wx.Array,
        numbers: Conditions,
        conditions: Conditions,
    ) -> tuple[wx.Array, tuple[wx.Array, ...]]:
        """Latents behind a step, and what the next one needs; see `Schedule`."""
        output = self.predict(latents * numbers["scale"], numbers["timestep"], conditions)
        terms = [latents, output, noise, *kept]
        factors = numbers["coefficients"]
        made = [
            reduce(add, (factors[row, j] * term for j, term in enumerate(terms)))
            for row in range(1 + len(kept))
        ]
        return self.after_step(made[0], numbers, conditions), tuple(made[1:])

    # What pipelines do differently.

    @abstractmethod
    def conditions(self, request: Request) -> Conditions:
        """What steps read of the request."""

    def plan(self, request: Request) -> Schedule:
        """The schedule."""
        return self.choose_scheduler(request).plan(request.num_inference_steps or self.steps)

    @abstractmethod
    def begin(
        self, request: Request, schedule: Schedule, draw: Draw
    ) -> tuple[wx.Array, Conditions]:
        """First latents, and what steps read of a picture that was given."""

    @abstractmethod
    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Output of the network after guidance; of arrays alone, since it is traced.

        Parameters
        ----------
        x : array
            Latents, scaled as the schedule says.
        timestep : (1,)
        conditions : dict of str to Array
        """

    def after_step(
        self, latents: wx.Array, numbers: Conditions, conditions: Conditions
    ) -> wx.Array:
        """What becomes of latents behind a step; traced as `predict` is."""
        del numbers, conditions
        return latents

    @abstractmethod
    def decode(self, latents: wx.Array) -> Floats:
        """Picture (n, height, width, 3) from -1 to 1, not cut."""

    def preview(self, latents: wx.Array) -> Floats:
        """Picture as `decode`, perhaps a smaller or rougher one."""
        return self.decode(latents)

    @abstractmethod
    def export_latents(self, latents: wx.Array) -> Floats:
        """Latents as diffusers' pipeline has them."""

    def draw_like(self, latents: wx.Array, draw: Draw) -> wx.Array:
        """Standard normal numbers for latents, drawn in diffusers' order of axes."""
        return wx.array(draw(latents.shape).astype(np.float32))

    # What they may use.

    def choose_scheduler(self, request: Request) -> Scheduler:
        """The folder's scheduler, or that of the request."""
        return self.scheduler.select(request.scheduler) if request.scheduler else self.scheduler

    def get_guidance(self, request: Request) -> float:
        """Scale of the guidance."""
        scale = request.guidance_scale
        return self.guidance if scale is None else float(scale)

    def choose_size(self, request: Request, default: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the picture.

        Raises
        ------
        OptionError
            They are no multiples of `multiple`, or out of range.
        """
        height = default[0] if request.height is None else request.height
        width = default[1] if request.width is None else request.width
        step = self.multiple
        if any(side % step or not step <= side <= MAX_SIDE for side in (height, width)):
            raise OptionError(
                f"a picture of {width} x {height} pixels, needs multiples of {step} from {step} "
                f"to {MAX_SIDE}"
            )
        return height, width


def compile_method(method: Callable[..., R]) -> Compiled[..., R]:
    """A method as a compiled function that does not keep its object: who drops one gets it back."""
    weak = WeakMethod(method)

    def call(*args: Any) -> R:  # noqa: ANN401  those of the method
        found = weak()
        assert found is not None
        return found(*args)

    return wx.compile(call)


def _fresh_seed() -> int:
    return int(np.random.default_rng().integers(1 << 31))
