"""The common part of pipelines: compiled steps, seeds, previews and images.

A step is traced once for each form of its arguments, and then replayed. The schedule's numbers, the
guidance scale and the text are arguments, so another prompt or step does not run the network's
Python code again. A pipeline defines these methods:

==================  ================================================================
`conditions`        the texts, and other inputs of steps: a dictionary of arrays
`plan`              the schedule
`begin`             the first latents
`predict`           the network's output after guidance; traced
`after_step`        a change of latents after a step; traced
`decode`            an image from the last latents
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
from wgpu_backend.images.schedule import Schedule
from wgpu_backend.images.schedulers import Scheduler
from wgpu_backend.images.weights import reload_slot

Conditions = dict[str, wx.Array]
R = TypeVar("R")


class Pipeline(ABC):
    """A text-to-image pipeline, with the networks of one folder.

    Parameters
    ----------
    folder : PipelineFolder
        Stays open until the pipeline is closed.
    exact : bool
        Whether networks are in f32; without, see `wgpu_backend.array.compile`.

    Attributes
    ----------
    networks : dict of str to Module
        Networks by the component's name.
    tokenizers : dict of str to PromptTokenizer
        Tokenizers by the component's name.
    """

    # Defaults of a request.
    steps: ClassVar[int] = 50
    guidance: ClassVar[float] = 7.5
    strength: ClassVar[float] = 0.8
    # Sides of images have to be multiples of this.
    multiple: int = 8

    def __init__(self, folder: PipelineFolder, *, exact: bool = False) -> None:
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
        self._step = compile_method(self._one_step, exact=exact)
        # Shape of the previous latents.
        self._size: tuple[int, ...] = ()
        # Weights that adapters have changed.
        self._changed: dict[tuple[str, str], Slot] = {}
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
        """Return the components that are networks of this pipeline."""
        return ("text_encoder", "text_encoder_2", "text_encoder_3", "unet", "transformer", "vae")

    def network(self, name: str) -> Any:  # noqa: ANN401  networks are called each in its way
        """Return the network of a component.

        Raises
        ------
        ModelError
            The folder has no such component.
        """
        if name not in self.networks:
            self.networks[name] = open_network(self.folder[name])
        return self.networks[name]

    def load_lora_weights(self, path: str | Path, scale: float = 1.0) -> None:
        """Add a LoRA adapter to the weights.

        Parameters
        ----------
        path : path
            Safetensors file with names of kohya's scripts, peft or diffusers.
        scale : float
            Factor of the adapter.

        Raises
        ------
        ModelError
            The file is damaged or for another model; no weight was changed.
        """
        with devices.preferring(self.session):
            changes = read_changes(path, self.networks)
            # Before the first weight changes, because traced steps have the old ones.
            self._step.clear()
            self._changed.update({(c.network, c.slot.path): c.slot for c in changes})
            apply_changes(changes, scale)

    def unload_lora_weights(self) -> None:
        """Read all weights that adapters changed again."""
        with devices.preferring(self.session):
            self._step.clear()
            for (name, _), slot in self._changed.items():
                if isinstance(slot.module, Linear):
                    slot.module.remove_low_rank()
                if not slot.array.dtype.quantised:
                    reload_slot(self.folder[name], self.networks[name], slot)
        self._changed.clear()

    def forget(self) -> None:
        """Release the memory of traced steps; the next image traces them again."""
        self._step.clear()

    def close(self) -> None:
        """Release memory and files; calling it again is harmless."""
        if not self._closed:
            self._closed = True
            self.forget()
            self.networks.clear()
            self.folder.close()

    # Requests.

    def generate(
        self,
        prompt: str,
        negative_prompt: str | None = None,
        **options: Any,  # noqa: ANN401  those of `Request`
    ) -> Generated:
        """Generate images from a text.

        Parameters
        ----------
        prompt, negative_prompt, options
            See `wgpu_backend.images.requests.Request`.

        Raises
        ------
        OptionError
            An argument is out of range, or not supported by this pipeline.
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
        """Return an image, (1, height, width, 3) from 0 to 1, or its latents."""
        schedule = self.plan(request)
        latents, more = self.begin(request, schedule, draw)
        if latents.shape != self._size:
            # Steps traced for another size hold memory of their own.
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
        """Return the latents after all steps."""
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
        """Return the numbers that are arguments of step `i`, f32.

        The default has ``coefficients`` (1 + kept, 3 + kept), ``scale`` () of the input,
        ``timestep`` (1,), and ``onward`` (2,): shares of image and noise after the step.
        """
        onward = schedule.noise_scales[i + 1] if i + 1 < len(schedule) else (1.0, 0.0)
        return {
            "coefficients": schedule.coefficients(i).astype(np.float32),
            "scale": np.array(schedule.input_scale(i), np.float32),
            "timestep": schedule.timesteps[i : i + 1].astype(np.float32),
            "onward": np.array(onward, np.float32),
        }

    def _one_step(
        self,
        latents: wx.Array,
        kept: tuple[wx.Array, ...],
        noise: wx.Array,
        numbers: Conditions,
        conditions: Conditions,
    ) -> tuple[wx.Array, tuple[wx.Array, ...]]:
        """Return the latents after a step, and the arrays kept for the next; see `Schedule`."""
        output = self.predict(latents * numbers["scale"], numbers["timestep"], conditions)
        terms = [latents, output, noise, *kept]
        factors = numbers["coefficients"]
        made = [
            reduce(add, (factors[row, j] * term for j, term in enumerate(terms)))
            for row in range(1 + len(kept))
        ]
        return self.after_step(made[0], numbers, conditions), tuple(made[1:])

    # Methods that pipelines define.

    @abstractmethod
    def conditions(self, request: Request) -> Conditions:
        """Return the inputs of steps that come from the request."""

    def plan(self, request: Request) -> Schedule:
        """Return the schedule of a request."""
        return self.choose_scheduler(request).plan(request.num_inference_steps or self.steps)

    @abstractmethod
    def begin(
        self, request: Request, schedule: Schedule, draw: Draw
    ) -> tuple[wx.Array, Conditions]:
        """Return the first latents, and the inputs of steps that come from a source image."""

    @abstractmethod
    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Return the network's output after guidance; traced, so it uses arrays only.

        Parameters
        ----------
        x : array
            Latents, times the schedule's input scale.
        timestep : (1,)
        """

    def after_step(
        self, latents: wx.Array, numbers: Conditions, conditions: Conditions
    ) -> wx.Array:
        """Change latents after a step; traced as `predict` is."""
        del numbers, conditions
        return latents

    @abstractmethod
    def decode(self, latents: wx.Array) -> Floats:
        """Decode latents to an image (n, height, width, 3) from -1 to 1, not clipped."""

    def preview(self, latents: wx.Array) -> Floats:
        """Decode latents as `decode`, perhaps smaller or less exactly."""
        return self.decode(latents)

    @abstractmethod
    def export_latents(self, latents: wx.Array) -> Floats:
        """Return latents in the layout of diffusers' pipeline."""

    def draw_like(self, latents: wx.Array, draw: Draw) -> wx.Array:
        """Draw standard normal numbers for latents, in diffusers' order of axes."""
        return wx.array(draw(latents.shape).astype(np.float32))

    # Helpers of pipelines.

    def choose_scheduler(self, request: Request) -> Scheduler:
        """Return the folder's scheduler, or that of the request."""
        return self.scheduler.select(request.scheduler) if request.scheduler else self.scheduler

    def get_guidance(self, request: Request) -> float:
        """Return the guidance scale."""
        scale = request.guidance_scale
        return self.guidance if scale is None else float(scale)

    def choose_size(self, request: Request, default: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of the image.

        Raises
        ------
        OptionError
            Height or width is not a multiple of `multiple`, or out of range.
        """
        height = default[0] if request.height is None else request.height
        width = default[1] if request.width is None else request.width
        step = self.multiple
        if any(side % step or not step <= side <= MAX_SIDE for side in (height, width)):
            raise OptionError(
                f"an image of {width} x {height} pixels, needs multiples of {step} from {step} "
                f"to {MAX_SIDE}"
            )
        return height, width


def compile_method(method: Callable[..., R], *, exact: bool = False) -> Compiled[..., R]:
    """Compile a method without keeping its object alive, so that it is freed when dropped."""
    weak = WeakMethod(method)

    def call(*args: Any) -> R:  # noqa: ANN401  those of the method
        found = weak()
        assert found is not None
        return found(*args)

    return wx.compile(call, exact=exact)


def _fresh_seed() -> int:
    return int(np.random.default_rng().integers(1 << 31))
