"""Messages between a server and a worker, as plain data and back.

Requests to a worker have one ``do``: load, submit, cancel, embed, states, rerank, scale, inspect,
save, restore, drop, status, beat, forget, close. Its messages have one ``type``: loading, events,
failed, answer, log, lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from wgpu_backend import errors
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import (
    EngineStatus,
    Event,
    Finish,
    Reading,
    SlotStatus,
    TokenLogprob,
    Usage,
)
from wgpu_backend.errors import BackendError
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ops.plugins import describe_mistake

Plain = dict[str, Any]
Scaled = tuple[str, float]
# Draft tokens come from the text itself, not from a model.
NGRAM = "ngram"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The arguments of `wgpu_backend.load` and of its `Engine` for a worker, as plain data.

    Parameters
    ----------
    device : str
        Id of the device.
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
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def plain(self) -> Plain:
        """Return the spec as plain data."""
        return asdict(self)

    @property
    def arguments(self) -> Plain:
        """Arguments of `wgpu_backend.load`, without the path."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("path", "imports", "engine"):
            del named[name]
        for name in ("adapters", "control_vectors"):
            named[name] = [(path, scale) for path, scale in named[name]]
        layers = self.control_layers
        return {**named, "control_layers": None if layers is None else tuple(layers)}


def request_to_plain(request: Request) -> Plain:
    """Return a request as plain data."""
    made = {each.name: _to_plain(getattr(request, each.name)) for each in fields(request)}
    made["tokens"] = [int(token) for token in request.tokens]
    made["stop_tokens"] = [*request.stop_tokens]
    made["logit_bias"] = list(request.logit_bias.items())
    return made


def _to_plain(value: Any) -> Any:  # noqa: ANN401
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def parse_request(plain: Plain) -> Request:
    """Build a request from plain data, and check it again.

    Raises
    ------
    OptionError
        A value is outside its range.
    """
    found: Plain = dict(plain)
    for name, kind in _find_part_classes().items():
        if found[name] is not None:
            found[name] = kind(**found[name])
    found["logit_bias"] = {int(token): float(value) for token, value in plain["logit_bias"]}
    return Request(**found)


@cache
def _find_part_classes() -> Mapping[str, type]:
    """Return the classes of those fields of a request that are data classes."""
    hints = get_type_hints(Request)
    kinds = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
    return {
        name: each
        for name, some in kinds.items()
        for each in some
        if isinstance(each, type) and is_dataclass(each)
    }


def event_to_plain(event: Event) -> list[object]:
    """Return an event as plain data; it is short, since there is one for each token."""
    finish = None if event.finish is None else asdict(event.finish)
    logprobs = [_logprob_to_plain(each) for each in event.logprobs]
    made: list[object] = [event.choice, event.text, event.tokens, logprobs, finish]
    if event.prompt_logprobs:
        return [*made, None, [_logprob_to_plain(each) for each in event.prompt_logprobs]]
    return made if event.reading is None else [*made, asdict(event.reading)]


def parse_event(plain: list[Any]) -> Event:
    """Build an event from plain data."""
    choice, text, tokens, logprobs, finish, *rest = plain
    ended = None if finish is None else _parse_finish(finish)
    reading = Reading(**rest[0]) if rest and rest[0] else None
    judged = tuple(map(_parse_logprob, rest[1] if len(rest) > 1 else ()))
    made = tuple(map(_parse_logprob, logprobs))
    return Event(choice, text, tuple(tokens), made, ended, reading, judged)


def _parse_finish(plain: Plain) -> Finish:
    found: Plain = {**plain, "usage": Usage(**plain["usage"])}
    return Finish(**found)


def _logprob_to_plain(each: TokenLogprob) -> list[object]:
    top = [_logprob_to_plain(other) for other in each.top]
    return [each.token, each.logprob, each.piece.decode("latin-1"), top]


def _parse_logprob(plain: list[Any]) -> TokenLogprob:
    token, logprob, piece, top = plain
    return TokenLogprob(token, logprob, piece.encode("latin-1"), tuple(map(_parse_logprob, top)))


def parse_status(plain: Plain) -> EngineStatus:
    """Build the status of an engine from plain data, the inverse of `dataclasses.asdict`."""
    found: Plain = dict(plain)
    found["slots"] = tuple(None if each is None else SlotStatus(**each) for each in plain["slots"])
    return EngineStatus(**found)


def parse_device(plain: Plain) -> DeviceInfo:
    """Build a device's facts from plain data, the inverse of `dataclasses.asdict`."""
    found: Plain = {**plain, "features": tuple(plain["features"])}
    return DeviceInfo(**found)


def error_to_plain(error: BaseException) -> Plain:
    """Return an error as plain data; unexpected errors by their type."""
    if isinstance(error, BackendError):
        return {"kind": type(error).__name__, "message": describe_mistake(error) or str(error)}
    if isinstance(error, OSError) and error.strerror:
        return {"kind": "BackendError", "message": f"{error.filename or 'file'}: {error.strerror}"}
    told = describe_mistake(error) or f"{type(error).__name__}: {error}"
    return {"kind": "BackendError", "message": told}


def parse_error(plain: Plain) -> BackendError:
    """Build an error from plain data, of its own class if `wgpu_backend.errors` has it."""
    kind = vars(errors).get(plain["kind"])
    if isinstance(kind, type) and issubclass(kind, BackendError):
        return kind(plain["message"])
    return BackendError(plain["message"])
