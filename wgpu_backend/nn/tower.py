"""The `Tower` base class of encoders for pictures and sound, and their registry.

A tower turns a picture or a sound into rows that take the place of tokens in a prompt. `prepare`
runs on the host and makes the tower's inputs, `encode` runs on the device. The names of weights and
keys are those of llama.cpp's mmproj files: ``v.blk.0.attn_q.weight``, ``clip.vision.block_count``.
Files in other formats are read under these names, so that a class has to know only one layout. A
convolution over patches has the shape of a matrix, (outputs, inputs), see `files.gguf.parts`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.media.sounds import MAX_SECONDS
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.module import FileModule, Module

Array = NDArray[Any]
M = TypeVar("M", bound=Module)
Grid = tuple[int, int, int]
NUMBER_MARK = "\ue000number\ue000"
"""In texts of a layout: the number of the picture in its prompt, from 0 on."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of a tower's rows in a prompt.

    Parameters
    ----------
    count : int
        Number of rows.
    grid : (int, int, int) or None
        Rows in time, height and width, for models whose RoPE has a position for each. None for
        positions like those of text.
    step : float
        Positions in time from one frame of a grid to the next; their sum is rounded down.
    states : int
        Number of the tower's rows, if the model attends to them instead: the prompt then has one
        token for the picture, and `count` is 1. 0 for rows in the prompt.
    """

    count: int
    grid: Grid | None = None
    step: float = 1.0
    states: int = 0

    @property
    def outputs(self) -> int:
        """Return the number of rows of the tower's result."""
        return self.states or self.count


@dataclass(frozen=True, slots=True)
class Media:
    """A picture or a sound, prepared for a tower by `make_media`.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Inputs of `Tower.encode`, in f32, i32 or bool. Graphs are recorded by their shapes.
    layout : sequence of str or Rows
        Texts with control tokens, and the rows between them: the replacement of a placeholder.
    digest : bytes
        Digest of `arrays` and `layout`, the key of cached prefixes.
    markers : tuple of str
        Texts that chat templates write for it, if they are not the tower's placeholder. The layout
        then also has the texts around it.
    """

    arrays: Mapping[str, Array]
    layout: Sequence[str | Rows]
    digest: bytes
    markers: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of rows of the tower's result."""
        return sum(part.outputs for part in self.layout if isinstance(part, Rows))

    @property
    def tokens(self) -> int:
        """Return the number of places in the prompt, without the texts."""
        return sum(part.count for part in self.layout if isinstance(part, Rows))


def make_media(
    arrays: Mapping[str, Array],
    layout: Sequence[str | Rows],
    markers: tuple[str, ...] = (),
    *,
    sources: Mapping[str, Array] | None = None,
) -> Media:
    """Make a `Media` with its digest.

    Parameters
    ----------
    sources : mapping of str to ndarray
        Smaller arrays that the tower computes some of `arrays` from, by the same names: the digest
        is of these instead, which takes less time.
    """
    # The layout counts as well: it decides between which tokens the rows are.
    whole = hashlib.sha256(repr([*layout]).encode())
    for name, array in {**arrays, **(sources or {})}.items():
        whole.update(f"{name} {array.dtype} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return Media(arrays, layout, whole.digest(), markers)


class Tower(FileModule, ABC):
    """An encoder of pictures or sound, with weights.

    A subclass declares its weights as fields, reads its options in `__init__` from
    ``self.config`` and calls ``super().__init__(backend)``, which fills the fields. Lists of layers
    are declared as ``layers: list[Layer] = weight("v.blk")``, or made in `__init__` and passed to
    `fill` one by one.

    Parameters
    ----------
    backend : Backend
        Backend with the weights of a file whose architecture is ``clip``.

    Attributes
    ----------
    kinds : tuple of str
        Values of ``clip.projector_type``.
    modality : str
        ``image`` or ``audio``.
    is_causal : bool
        Whether rows attend to earlier rows only; if false, rows of one `Rows` attend to each other.
    placeholder : str
        Token that the model's chat template writes for a picture or a sound.
    around : (str, str)
        Texts before and after a placeholder that are not part of the layout, as a template writes
        them: ``("<|vision_start|>", "<|vision_end|>")``.
    max_seconds : float
        The longest sound, known before a sound is decoded and resampled.
    cols : int
        Columns of a row: the width of the language model, or a multiple of it if parts of a row are
        added after its first layers. Set in `__init__`.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    modality: ClassVar[Literal["image", "audio"]] = "image"
    is_causal: ClassVar[bool] = True
    placeholder: ClassVar[str]
    around: ClassVar[tuple[str, str]] = ("", "")
    max_seconds: ClassVar[float] = MAX_SECONDS
    cols: int

    def fill_layers(self, make: Callable[[], M], count: int, prefix: str = "v.blk.") -> list[M]:
        """Make `count` layers and fill them with the weights below the prefix and their number."""
        layers = [make() for _ in range(count)]
        for number, layer in enumerate(layers):
            self.fill(layer, f"{prefix}{number}.")
        return layers

    @abstractmethod
    def prepare(self, source: Array) -> Media:
        """Prepare a picture or a sound on the host.

        Parameters
        ----------
        source : (height, width, 3), u8, or (samples,), f32
            A picture in RGB, or samples at the rate that the model needs.

        Raises
        ------
        OptionError
            The picture is too small or too narrow, or the sound is too long.
        """

    def prepare_video(self, frames: Sequence[Array], fps: float) -> Media:
        """Prepare a video on the host; most towers take none.

        Parameters
        ----------
        frames : sequence of (height, width, 3), u8
            Pictures of one size, at equal intervals.
        fps : float
            Frames in a second.

        Raises
        ------
        OptionError
            The tower takes no videos, or these frames do not fit it.
        """
        raise OptionError(
            f"video: projector {self.kinds[0]!r} takes no videos, needs a model such as Qwen2-VL; "
            "send frames as pictures"
        )

    @abstractmethod
    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of a prepared picture or sound: (rows, cols), f32.

        Parameters
        ----------
        inputs : mapping of str to Tensor
            ``Media.arrays`` as tensors.
        """


T = TypeVar("T", bound=type[Tower])
# Folders that are listed: a new tower needs no entry anywhere.
_FOLDERS = ("wgpu_backend.models.vision", "wgpu_backend.models.audio")
_TOWERS: dict[tuple[str, str], type[Tower]] = {}


def projector(*kinds: str) -> Callable[[T], T]:
    """Register a tower under values of ``clip.projector_type``.

    Raises
    ------
    ModelError
        No name was given, or one is already registered for this modality.
    """
    if not kinds:
        raise ModelError('projector: a name is needed, as in @projector("gemma3")')

    def register(tower: T) -> T:
        for kind in kinds:
            first = _TOWERS.get((tower.modality, kind))
            if first is not None:
                raise ModelError(f"projector {kind}: already registered by {first.__qualname__}")
        tower.kinds = kinds
        _TOWERS.update({(tower.modality, kind): tower for kind in kinds})
        return tower

    return register


def towers() -> dict[tuple[str, str], type[Tower]]:
    """Return the classes of all towers by modality and projector."""
    for folder in _FOLDERS:
        package = import_module(folder)
        for module in iter_modules(package.__path__):
            import_module(f"{folder}.{module.name}")
    return dict(sorted(_TOWERS.items()))


_ENCODERS = {"image": "vision", "audio": "audio"}


def projector_kinds(config: Config) -> dict[str, str]:
    """Return the projector type of each modality that a file has a tower for.

    Raises
    ------
    ModelError
        The file has none, or a key is missing or of another type.
    """
    found: dict[str, str] = {}
    for modality, section in _ENCODERS.items():
        if f"has_{section}_encoder" not in config or not config.bool(f"has_{section}_encoder"):
            continue
        own = f"{section}.projector_type"
        found[modality] = config.string(own if own in config else "projector_type")
    if not found:
        raise ModelError(
            f"{config.source}: it has neither clip.has_vision_encoder nor clip.has_audio_encoder, "
            "needs one for pictures or sound"
        )
    return found


def known_kinds(config: Config) -> dict[str, str]:
    """Return the kinds of `projector_kinds` that are registered; all of them if none is.

    Qwen3-Omni's files, for example, have a tower for sound that is unknown, and one for pictures.

    Raises
    ------
    ModelError
        See `projector_kinds`.
    """
    found = projector_kinds(config)
    return {name: kind for name, kind in found.items() if (name, kind) in towers()} or found


def tower_class(config: Config, modality: str, kind: str) -> type[Tower]:
    """Return the tower class for a modality and projector type.

    Raises
    ------
    ModelError
        No class is registered for it.
    """
    known = towers()
    found = known.get((modality, kind))
    if found is None:
        names = ", ".join(name for own, name in known if own == modality)
        raise ModelError(
            f"{config.source}: projector {kind!r} for {modality} is unknown, needs one of {names}"
        )
    return found
