"""Messages between a server and a worker, as plain data and back.

Requests to a worker have one ``do``: load, submit, cancel, embed, states, rerank, scale, inspect,
save, restore, drop, status, beat, forget, close. Its messages have one ``type``: loading, events,
failed, answer, log, lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from wgpu_backend import errors
from wgpu_backend.errors import BackendError
from wgpu_backend.ml.placement import Placement, PlacementOptions
from wgpu_backend.ops.plugins import describe_mistake

Item = TypeVar("Item")
Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""A function that encodes values as plain data, and its inverse."""
Plain = dict[str, Any]
Scaled = tuple[str, float]
# Draft tokens come from the text itself, not from a model.
NGRAM = "ngram"


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """The options of a request that place layers, by Ollama's names.

    Parameters
    ----------
    num_gpu : int or None
        Last layers that go on GPUs; None for as many as fit.
    main_gpu : int or None
        Position of the GPU to use; None for the best.
    """

    num_gpu: int | None = None
    main_gpu: int | None = None


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage: a part of a model's layers on another node.

    Parameters
    ----------
    id : str
        Id of its device in the placement.
    device : str
        Id of the device there.
    address : (str, int)
        Of the node's listener.
    ticket : str
        See `cluster.link.make_ticket`.
    version : str
        Of this package.
    files : tuple of (str, str, str)
        Files of the model: path on the first node, path there, and SHA-256.
    late_seconds : float
        Time for one answer after which the stage counts as lost.
    """

    id: str
    device: str
    address: tuple[str, int]
    ticket: str
    version: str
    files: tuple[tuple[str, str, str], ...]
    late_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A model whose layers are on several nodes.

    Parameters
    ----------
    devices, layers
        As of `Placement`; all devices but the first are stages.
    """

    devices: tuple[str, ...]
    layers: tuple[int, ...]
    stages: tuple[StageSpec, ...]

    @property
    def placement(self) -> Placement:
        """The device of each layer."""
        return Placement(self.devices, self.layers, 0, len(self.devices) - 1)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The arguments of `wgpu_backend.load` and of its `Engine` for a worker, as plain data.

    Parameters
    ----------
    device : str
        Id of the device.
    devices : tuple of str
        Ids of several devices that layers are placed on; empty for `device` alone.
    placement : PlacementOptions or None
        How layers are placed; None for the whole model on one device.
    pipeline : PipelineSpec or None
        Stages on other nodes; `device` is then the device of the first.
    imports : tuple of str
        Python files that register architectures and ops.
    engine : mapping
        Keyword arguments of the engine; ``draft`` may be the path of a model.
    """

    path: str
    device: str
    profile: str = "full"
    num_ctx: int | None = None
    num_parallel: int = 1
    kv_dtype: str = "f16"
    exact: bool = False
    coarse: bool = False
    adapters: tuple[Scaled, ...] = ()
    control_vectors: tuple[Scaled, ...] = ()
    control_layers: tuple[int, int] | None = None
    imports: tuple[str, ...] = ()
    mmproj: str | None = None
    warmup: bool = False
    devices: tuple[str, ...] = ()
    placement: PlacementOptions | None = None
    pipeline: PipelineSpec | None = None
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def arguments(self) -> Plain:
        """Arguments of `wgpu_backend.load`, without the path."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("path", "imports", "engine", "pipeline"):
            del named[name]
        named |= {"devices": [*self.devices], "device": None} if self.devices else {"devices": None}
        if self.pipeline is not None:
            named |= {"placement": self.pipeline.placement, "device": None, "devices": None}
        for name in ("adapters", "control_vectors"):
            # Pairs arrive as lists, which JSON makes of tuples.
            named[name] = [(path, scale) for path, scale in named[name]]
        layers = self.control_layers
        return {**named, "control_layers": None if layers is None else tuple(layers)}


def apply_gpu_options(spec: LoadSpec, gpu: GpuOptions | None, devices: Sequence[str]) -> LoadSpec:
    """Return the arguments of loading with a request's options.

    Parameters
    ----------
    devices : sequence of str
        Ids of the devices that still work.
    """
    left = tuple(name for name in spec.devices if name in devices)
    placement = spec.placement
    if placement is not None and left != spec.devices:
        # Shares and positions were meant for all devices.
        placement = replace(placement, tensor_split=(), main_gpu=None)
    if gpu is None:
        return replace(spec, devices=left, placement=placement)
    placement = placement or PlacementOptions(capped=True)
    if gpu.num_gpu is not None:
        placement = replace(placement, gpu_layers=gpu.num_gpu)
    if gpu.main_gpu is not None:
        left = left or tuple(devices)
        placement = replace(placement, main_gpu=gpu.main_gpu, split_mode="none", tensor_split=())
    return replace(spec, devices=left, placement=placement)


def to_plain(value: object) -> list[Any]:
    """Return a data class as plain data: the list of its fields.

    Without names, an event is short; there is one for each token.
    """
    return _make_codec(type(value))[0](value)


def from_plain(kind: type[Item], plain: list[Any]) -> Item:
    """Build a data class from plain data, the inverse of `to_plain`; it checks its fields again.

    Raises
    ------
    OptionError
        A field of a request is outside its range.
    """
    return _make_codec(kind)[1](plain)


@cache
def _make_codec(kind: type) -> Codec:
    """Return the functions that encode and decode a data class, by the types of its fields."""
    names = [each.name for each in fields(cast("Any", kind))]
    hints = get_type_hints(kind)
    codecs = [(index, _choose_codec(hints[name])) for index, name in enumerate(names)]
    encoders = [(index, codec[0]) for index, codec in codecs if codec is not None]
    decoders = [(index, codec[1]) for index, codec in codecs if codec is not None]
    read = attrgetter(*names)

    def encode(value: Any) -> list[Any]:  # noqa: ANN401
        found = [*read(value)]
        for index, convert in encoders:
            # Most events have one token and nothing else; JSON has None and empty tuples.
            if found[index]:
                found[index] = convert(found[index])
        return found

    def decode(plain: list[Any]) -> Any:  # noqa: ANN401
        found = [*plain]
        for index, convert in decoders:
            if found[index] is not None:
                found[index] = convert(found[index])
        return kind(*found)

    return encode, decode


def _choose_codec(hint: Any) -> Codec | None:  # noqa: ANN401
    """Return the functions that encode and decode values of a type; None for plain data."""
    origin, arguments = get_origin(hint), get_args(hint)
    if NoneType in arguments:
        others = [each for each in arguments if each is not NoneType]
        inner = _choose_codec(others[0]) if len(others) == 1 else None
        return inner and (_allow_none(inner[0]), _allow_none(inner[1]))
    if hint is bytes:
        # JSON has no bytes; these are the characters of the same numbers.
        return lambda value: value.decode("latin-1"), lambda plain: plain.encode("latin-1")
    if isinstance(hint, type) and is_dataclass(hint):
        # Not its codec: a class may have fields of its own type.
        return to_plain, partial(from_plain, hint)
    if origin is Mapping and arguments[0] is int:
        # Keys of objects in JSON are texts.
        return lambda value: list(value.items()), lambda plain: dict(map(tuple, plain))
    if origin not in (tuple, Sequence):
        return None
    collect = cast("Callable[[Any], Any]", tuple if origin is tuple else list)
    inner = _choose_codec(arguments[0]) if arguments[-1] is Ellipsis or origin is Sequence else None
    if inner is None:
        return list, collect
    encode, decode = inner
    return lambda values: [*map(encode, values)], lambda plain: collect(map(decode, plain))


def _allow_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def error_to_plain(error: BaseException) -> Plain:
    """Return an error as plain data; unexpected errors by their type."""
    if isinstance(error, BackendError):
        return {"kind": type(error).__name__, "message": describe_mistake(error) or str(error)}
    if isinstance(error, OSError) and error.strerror:
        return {"kind": "BackendError", "message": f"{error.filename or 'file'}: {error.strerror}"}
    text = describe_mistake(error) or f"{type(error).__name__}: {error}"
    return {"kind": "BackendError", "message": text}


def parse_error(plain: Plain) -> BackendError:
    """Build an error from plain data, of its own class if `wgpu_backend.errors` has it."""
    kind = vars(errors).get(plain["kind"])
    if isinstance(kind, type) and issubclass(kind, BackendError):
        return kind(plain["message"])
    return BackendError(plain["message"])
