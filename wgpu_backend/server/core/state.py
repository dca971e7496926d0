"""State shared by all routes: the store, the loaded models and the settings."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from wgpu_backend.errors import ModelNotFound, StoreError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.store.modelfile import KNOWN_PARAMETERS, check_parameters
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import Stored, open_stored
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.defaults import ModelDefaults
from wgpu_backend.server.core.errors import describe_error
from wgpu_backend.server.core.image_queue import ImageQueue, SpeechQueue
from wgpu_backend.server.core.model_capabilities import takes_sound
from wgpu_backend.server.core.model_pool import Loaded, Measure, ModelPool, Open, RequestedContext
from wgpu_backend.server.core.remote_files import RemoteFiles
from wgpu_backend.server.core.request import RequestError, clamp_options
from wgpu_backend.server.core.request_log import GONE, get_record, ignore
from wgpu_backend.server.core.schema import ANYTHING
from wgpu_backend.server.worker.image_worker import HANG_SECONDS
from wgpu_backend.server.worker.messages import GpuOptions

_LOG = logging.getLogger("wgpu_backend.server")
Result = TypeVar("Result")
# Durations as Go writes them, since Ollama's clients do.
_DURATION = re.compile(r"([+-]?\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server.

    Parameters
    ----------
    open_model : callable
        Loads a model with a context of so many positions.
    fixed : mapping of str to Stored
        Models in addition to the store's, such as ``story``.
    hosts : tuple of str
        Names by which the server may be called; empty for any.
    origins : tuple of str
        Of pages that may call it; ``*`` for all, and ``app://*`` for all of a scheme.
    api_keys : tuple of str
        Empty to serve requests without a key.
    prefix : str
        Prefix of all paths, such as ``/models``; empty for none.
    keep_seconds : float
        How long models stay; negative means for ever.
    default_model : str
        Model for requests that do not name one; empty to require a name.
    any_name : bool
        Use the default model for unknown names, too; it is then the only one listed.
    preload : bool
        Load that model at start-up, and keep it loaded.
    aliases, tags : tuple of str
        Further names of that model, and tags for lists of models.
    defaults : ModelDefaults
        Defaults for that model's answers.
    pooling : str or None
        Pooling of the vectors of a text's tokens; None for the model's own.
    shows : frozenset of str
        Which of ``slots``, ``metrics`` and ``page`` are served; with ``verbose`` all answers of
        chats include their prompt.
    slot_folder : Path or None
        Folder for saved slots; None to refuse saving.
    max_loaded, max_queue, max_body : int
        Models at once, requests that wait for each, bytes of a request.
    pause_seconds : float
        How long a client may take between two pieces that it sends or reads.
    measure : callable or None
        Estimates the memory that a model needs, and that its device has.
    pictures : mapping of str to Path
        Folders of pipelines that make pictures.
    picture_device : str or None
        Device of the pipelines and of speech models; None for the best.
    picture_hang_seconds : float
        See `ImageWorker`.
    signing_key : Path or None
        Key that signs in at registries for pushes.
    remote : RemoteFiles or None
        Reads pictures at URLs that clients name; None to refuse them.
    strict : bool
        Refuse fields and options that are not known, in place of ignoring them.
    debug : bool
        Log the names of each request's fields.
    """

    store: Store
    open_model: Open
    fixed: dict[str, Stored] = field(default_factory=dict[str, Stored])
    version: str = ""
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    prefix: str = ""
    keep_seconds: float = 300.0
    default_model: str = ""
    any_name: bool = False
    preload: bool = False
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    defaults: ModelDefaults = field(default_factory=ModelDefaults)
    pooling: str | None = None
    shows: frozenset[str] = frozenset(("slots", "metrics", "page"))
    slot_folder: Path | None = None
    max_loaded: int = 3
    max_queue: int = 512
    max_body: int = 64 << 20
    pause_seconds: float = 60.0
    measure: Measure | None = None
    pictures: dict[str, Path] = field(default_factory=dict[str, Path])
    picture_device: str | None = None
    picture_hang_seconds: float = HANG_SECONDS
    signing_key: Path | None = None
    remote: RemoteFiles | None = None
    strict: bool = False
    debug: bool = False


class State:
    """The state that the routes share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = settings.store
        # Digests of models whose unknown parameters were logged, to log them once.
        self._warned = set[str]()
        self.image_queue = ImageQueue(
            settings.pictures, settings.picture_device, settings.picture_hang_seconds
        )
        self.speech_queue = SpeechQueue(settings.picture_device, settings.picture_hang_seconds)
        self.pool = ModelPool(
            settings.open_model,
            settings.keep_seconds,
            settings.max_loaded,
            settings.measure,
        )

    def get_model_name(self, fields: Fields) -> str:
        """Return the name of the model that a request is for.

        Raises
        ------
        RequestError
            The request names no model, and the server has no default model.
        """
        return fields.text("model") or self.own_name or fields.require("model")

    @property
    def own_name(self) -> str:
        """Name of the server's own model in answers; empty if there is none."""
        aliases = self.settings.aliases
        return min(aliases) if aliases else self.settings.default_model

    def get_alias(self, stored: Stored) -> str:
        """Return the first alias of a model; empty if it has none."""
        return self.own_name if self.settings.aliases and self._is_own(stored) else ""

    def find_default(self) -> Stored | None:
        """Return the default model; None if it was removed."""
        if not self.settings.default_model:
            return None
        with suppress(ModelNotFound):
            return self.find(self.settings.default_model)
        return None

    def _is_own(self, stored: Stored) -> bool:
        own = self.find_default()
        return own is not None and own.entry.name == stored.entry.name

    def require_shown(self, what: str) -> None:
        """Raise if the operator switched a feature off.

        Raises
        ------
        RequestError
        """
        if what not in self.settings.shows:
            raise RequestError(501, f"{what}: the server was started with --no-{what}")

    def find(self, name: str) -> Stored:
        """Find a model by its name.

        Raises
        ------
        ModelNotFound
        """
        fixed = self.find_fixed(name)
        if fixed is not None:
            return fixed
        try:
            found = open_stored(self.store, self.store.existing(_parse_name(name)))
        except ModelNotFound:
            raise ModelNotFound(f"model '{name}' not found") from None
        get_record().note_files(name, found.path, found.adapters)
        return found

    def find_fixed(self, name: str) -> Stored | None:
        """Find a model that is not in the store, by its name.

        Raises
        ------
        RequestError
            The name is invalid.
        """
        short = str(_parse_name(name)).casefold().removesuffix(":latest")
        return self.settings.fixed.get(short)

    def _resolve(self, name: str) -> Stored:
        """Return the model that serves requests for a name."""
        # An alias hides a model of the store that has the same name.
        if name in self.settings.aliases:
            return self.find(self.settings.default_model)
        try:
            return self.find(name)
        except ModelNotFound:
            if not self.settings.any_name:
                raise
        return self.find(self.settings.default_model)

    def _resolve_usable(self, name: str) -> Stored:
        """Return the model for a name, without parameters that this engine does not know."""
        stored = self._resolve(name)
        if takes_sound(stored.path):
            raise RequestError(
                400,
                f"model '{name}' takes sounds and writes their text; POST /v1/audio/transcriptions",
            )
        given = clamp_options(check_parameters(stored.parameters))
        unknown = given.keys() - KNOWN_PARAMETERS
        if unknown and stored.entry.digest not in self._warned:
            self._warned.add(stored.entry.digest)
            _LOG.warning("%s: ignores parameters %s", stored.entry.name, ", ".join(sorted(unknown)))
        return replace(stored, parameters={n: v for n, v in given.items() if n not in unknown})

    @asynccontextmanager
    async def using(
        self,
        name: str,
        num_ctx: RequestedContext = None,
        keep_alive: object = None,
        gpu: GpuOptions | None = None,
    ) -> AsyncGenerator[Loaded]:
        """Use a model by its name; an "any" context is for callers that compute nothing with it."""
        get_record().model = name
        # Reading manifests and files blocks, so it happens in a thread.
        stored = await run_in_threadpool(self._resolve_usable, name)
        keep = None if keep_alive is None else parse_keep_alive(keep_alive)
        context = stored.parameters.get("num_ctx") if num_ctx is None else num_ctx
        if isinstance(context, int):
            context = await run_in_threadpool(_limit_context, stored, context)
        if gpu is None and context != "any":
            gpu = make_gpu_options(stored.parameters)
        async with self.pool.using(stored, context, keep, gpu) as found:
            defaults = self.settings.defaults
            if defaults != ModelDefaults() and found.defaults is not defaults:
                # Compiling a template blocks, so it happens in a thread.
                await run_in_threadpool(self._apply_defaults, found)
            yield found

    def _apply_defaults(self, loaded: Loaded) -> None:
        """Give the server's own model its operator's template and defaults."""
        if not self._is_own(loaded.stored):
            return
        if source := self.settings.defaults.template:
            loaded.model.prompter.use_template(source)
        loaded.defaults = self.settings.defaults


_GPU_OPTIONS = ("num_gpu", "main_gpu")


def _limit_context(stored: Stored, num_ctx: int) -> int:
    """Return the requested context, but at most the length that the model was trained with."""
    most = _read_trained_context(stored.path)
    if num_ctx <= most:
        return num_ctx
    _LOG.warning("%s: num_ctx: %s, it was trained with %s", stored.entry.name, num_ctx, most)
    return most


@lru_cache(maxsize=64)
def _read_trained_context(path: Path) -> int:
    """Return the trained context length; no limit if the file does not name it.

    A blob's content never changes, so each is read once.
    """
    with open_gguf(path, check_types=False) as file:
        return file.config.uint("context_length", sys.maxsize)


def _parse_name(name: str) -> ModelName:
    try:
        return ModelName.parse(name)
    except StoreError as error:
        raise RequestError(400, str(error)) from None


def parse_keep_alive(keep_alive: object) -> float:
    """Return the seconds of a ``keep_alive``, a number or such as ``5m``; negative means for ever.

    Raises
    ------
    RequestError
        The value is not a duration.
    """
    text = str(keep_alive).strip()
    seconds = _parse_seconds(text)
    if seconds is None or not math.isfinite(seconds):
        raise RequestError(400, f"keep_alive: {text[:40]!r}, needs a duration such as 5m, 1h30m")
    return seconds


def _parse_seconds(text: str) -> float | None:
    """Return the seconds of a text; None if it is not a duration."""
    with suppress(ValueError):
        # A number alone is in seconds.
        return float(text)
    sign = -1.0 if text.startswith("-") else 1.0
    rest = text.lstrip("+-")
    parts = _DURATION.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        return None
    return sign * sum(float(number) * _UNITS[unit] for number, unit in parts)


def read_options(fields: Fields) -> dict[str, Any]:
    """Return Ollama's options of a request: from its ``options``, and from its top level.

    Raises
    ------
    RequestError
        The server is strict, and one is not known.
    """
    given: dict[str, Any] = fields.get("options", dict) or {}
    # A strict server refuses unknown options where they are read.
    if not get_record().strict:
        for name in given.keys() - KNOWN_PARAMETERS:
            ignore(f"options.{name}", "no such option")
        given = {name: value for name, value in given.items() if name in KNOWN_PARAMETERS}
    extra = {
        name: fields.get(name, *ANYTHING.kinds) for name in KNOWN_PARAMETERS if fields.has(name)
    }
    return {**extra, **given}


def read_num_ctx(fields: Fields) -> int | None:
    """Return the context length in a request's ``options``; None if it is not set."""
    found = Fields(read_options(fields), where="options.").get("num_ctx", float)
    if isinstance(found, float) and not found.is_integer():
        raise RequestError(400, f"options.num_ctx: {found}, needs a whole number")
    return None if found is None else int(found)


def read_gpu_options(fields: Fields) -> GpuOptions | None:
    """Return ``num_gpu`` and ``main_gpu`` in a request's ``options``; None if none is set."""
    given = Fields(read_options(fields), where="options.")
    found = {name: given.get(name, float) for name in _GPU_OPTIONS}
    for name, value in found.items():
        if isinstance(value, float) and not value.is_integer():
            raise RequestError(400, f"options.{name}: {value}, needs a whole number")
    return make_gpu_options(found)


def make_gpu_options(options: Mapping[str, Any]) -> GpuOptions | None:
    """Return the options that place layers; None for their defaults.

    A negative ``num_gpu`` stands for as many layers as fit, as in Ollama.
    """
    layers, main = (options.get(name) for name in _GPU_OPTIONS)
    layers = None if layers is None or layers < 0 else int(layers)
    if layers is None and main is None:
        return None
    return GpuOptions(layers, None if main is None else int(main))


async def cancel_when_gone(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for `work`; cancel it if the client disconnects.

    Raises
    ------
    RequestError
        The client has gone.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_until_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestError(499, GONE)
    finally:
        for each in (task, gone):
            if not each.done():
                each.cancel()
        # A cancelled task still has to release its model.
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_until_gone(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


async def start_stream(
    request: Request,
    lines: AsyncGenerator[bytes],
    kind: str,
    make_last: Callable[[int, str], bytes],
) -> StreamingResponse:
    """Start a stream after its first line, so that earlier failures get their own status.

    Parameters
    ----------
    kind : str
        Type of the content.
    make_last : callable
        The last line where an error follows others, of its status and message.

    Raises
    ------
    RequestError
        The client has gone.
    """
    # Errors before the first line still get an HTTP status of their own.
    first = await cancel_when_gone(request, anext(lines, None))

    async def send_all() -> AsyncGenerator[bytes]:
        if first is None:
            return
        yield first
        try:
            async with aclosing(lines):
                async for line in lines:
                    yield line
        except Exception as error:
            # The status was sent, so the error becomes the last line.
            yield make_last(*describe_error(error))

    return StreamingResponse(send_all(), media_type=kind)
