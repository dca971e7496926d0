"""A pool of loaded models, and how long they stay."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from wgpu_backend.errors import OptionError, OutOfMemory
from wgpu_backend.files.store.stored import Stored
from wgpu_backend.graph.html_tables import binary_size
from wgpu_backend.server.cluster.opener import ClusterOpener
from wgpu_backend.server.core.defaults import ModelDefaults
from wgpu_backend.server.core.model_api import EngineInterface, ModelInterface
from wgpu_backend.server.worker.estimate import MemoryEstimate
from wgpu_backend.server.worker.messages import GpuOptions
from wgpu_backend.server.worker.remote import Workers

_LOG = logging.getLogger("wgpu_backend.server")
# Time between two looks for models to unload.
_TICK_SECONDS = 0.1
Open = Callable[..., ModelInterface]
"""A function that loads a model, see `_Asked.arguments`."""
Measure = Callable[..., MemoryEstimate]
"""A function with the same arguments that estimates the memory of a model, and of its device."""
RequestedContext = int | Literal["any"] | None
"""Positions of a requested context; None for the model's own, "any" for whichever is loaded."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options of a request that apply when its model is loaded.

    Parameters
    ----------
    num_ctx : int or None
        Positions of the context; None for the model's own.
    gpu : GpuOptions or None
        None for the default.
    """

    num_ctx: int | None = None
    gpu: GpuOptions | None = None

    def arguments(self, stored: Stored) -> tuple[object, ...]:
        """Return the model, its context, and options of placing layers if there are any."""
        return (stored, self.num_ctx, *(() if self.gpu is None else (self.gpu,)))


@dataclass(slots=True)
class EmbeddingTotals:
    """Totals over the texts that a model embedded.

    Parameters
    ----------
    seconds : float
        Time from a request's first text to its last vector.
    """

    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, texts: int, tokens: int, seconds: float) -> None:
        """Count the texts of a request."""
        self.texts += texts
        self.tokens += tokens
        self.seconds += seconds


@dataclass(slots=True, eq=False)
class Loaded:
    """A loaded model.

    Parameters
    ----------
    keep_seconds : float
        Time that it stays after its last request; negative means for ever.
    users : int
        Requests in progress.
    idle_since : float
        By the monotonic clock.
    asked : int or None
        Positions that were requested when it was loaded; None for the default.
    gpu : GpuOptions or None
        Options of placing layers that were requested then; None for the default.
    leaving : bool
        It is unloaded when its requests are done, and takes no new ones.
    defaults : ModelDefaults
        The operator's defaults for its answers.
    embedded : EmbeddingTotals
        Totals over the texts that it embedded so far.
    slots : dict of int to list of int
        Tokens of the newest requests that named a slot, by its number.
    lora_scales : sequence of float or None
        Scales of its LoRA adapters that `POST /lora-adapters` set; None for those of its file.
    """

    stored: Stored
    model: ModelInterface
    load_seconds: float
    keep_seconds: float
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)
    asked: int | None = None
    gpu: GpuOptions | None = None
    leaving: bool = False
    defaults: ModelDefaults = field(default_factory=ModelDefaults)
    embedded: EmbeddingTotals = field(default_factory=EmbeddingTotals)
    slots: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    lora_scales: Sequence[float] | None = None

    @property
    def engine(self) -> EngineInterface | None:
        """The engine of the model; None for encoders, which do not generate text."""
        return self.model.engine

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the model is unloaded; None if it stays."""
        if self.keep_seconds < 0:
            return None
        if self.users:
            return self.keep_seconds
        return max(0.0, self.idle_since + self.keep_seconds - time.monotonic())

    @property
    def lost(self) -> bool:
        """Return whether the model's worker has ended."""
        return self.model.lost is not None

    @property
    def nbytes(self) -> int:
        """Bytes that the model takes on its devices."""
        return self.model.nbytes

    @property
    def vram_nbytes(self) -> int:
        """Bytes that the model takes on devices other than the NumPy device."""
        return self.model.vram_nbytes

    @property
    def loras(self) -> list[tuple[str, float]]:
        """Names of files of LoRA adapters, with the scales of requests that name none."""
        names, scales = [name for name, _ in self.model.loras], self.lora_scales
        if scales is None:
            return [*self.model.loras]
        return list(zip(names, scales, strict=True))

    def set_lora_scales(self, scales: Sequence[float]) -> None:
        """Set the scales of requests that name none."""
        self.model.set_lora_scales(scales)
        self.lora_scales = scales

    def has(self, num_ctx: RequestedContext, gpu: GpuOptions | None = None) -> bool:
        """Return whether the model has the requested context length; None is the default length.

        A context that one client requested is not shared with clients that requested none. With no
        options of placing layers, any placement will do, as in Ollama.
        """
        # `asked` is None for a model that was loaded with its default context.
        return num_ctx in ("any", self.asked, self.model.num_ctx) and gpu in (None, self.gpu)

    def close(self) -> None:
        """Release the model's memory."""
        self.model.close()


class ModelPool:
    """A pool of loaded models.

    Models load one at a time; requests for a loaded model do not wait for that. If there are too
    many models or too little memory, the least recently used one is unloaded, an idle one first.
    It finishes its requests before, and takes no new ones. A model whose worker has ended is
    loaded again.

    Parameters
    ----------
    keep_seconds : float
        Default time that a model stays after its last request; negative means for ever.
    most : int
        Most models that are loaded at once.
    measure : callable or None
        None if memory cannot be estimated before loading.
    """

    def __init__(
        self,
        open_model: Open,
        keep_seconds: float,
        most: int,
        measure: Measure | None = None,
    ) -> None:
        self._open = open_model
        self._keep_seconds = keep_seconds
        self._most = most
        self._measure = measure
        self._loaded: dict[str, Loaded] = {}
        self._changing = asyncio.Lock()
        self._idle = asyncio.Event()

    def list_models(self) -> list[Loaded]:
        """Return the loaded models, the most recently used last."""
        return list(self._loaded.values())

    @asynccontextmanager
    async def using(
        self,
        stored: Stored,
        num_ctx: RequestedContext = None,
        keep_seconds: float | None = None,
        gpu: GpuOptions | None = None,
    ) -> AsyncGenerator[Loaded]:
        """Use a model, and load it if needed.

        Parameters
        ----------
        num_ctx : int, "any" or None
            None for the model's own. A model that has another context is loaded again when it
            is idle.
        gpu : GpuOptions or None
            Options of placing layers; a model that was loaded with others is loaded again.
        """
        # Loading runs in a task of its own, shielded from this request.
        # A client that goes away while a model loads must not leave half of one.
        task = asyncio.create_task(self._acquire(stored, num_ctx, keep_seconds, gpu))
        try:
            found = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._release_abandoned)
            raise
        try:
            yield found
        finally:
            self._release(found)

    async def _acquire(
        self,
        stored: Stored,
        requested: RequestedContext,
        keep_seconds: float | None,
        gpu: GpuOptions | None,
    ) -> Loaded:
        found = self._find_loaded(stored, requested, gpu)
        if found is None:
            asked = _Asked(None if requested == "any" else requested, gpu)
            async with self._changing:
                # Another request may have loaded it while this one waited for the lock.
                found = self._find_loaded(stored, requested, gpu) or await self._load_or_reload(
                    stored, asked
                )
        if keep_seconds is not None:
            found.keep_seconds = keep_seconds
        found.users += 1
        return found

    def _release_abandoned(self, task: asyncio.Task[Loaded]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._release(task.result())

    def _release(self, found: Loaded) -> None:
        found.users -= 1
        found.idle_since = time.monotonic()
        # `_unload` waits for the last user.
        self._idle.set()

    def _find_loaded(
        self, stored: Stored, num_ctx: RequestedContext, gpu: GpuOptions | None
    ) -> Loaded | None:
        """Return a loaded model that fits the request, if any."""
        key = str(stored.entry.name)
        found = self._loaded.get(key)
        if found is None or found.leaving or found.lost:
            return None
        # A pull or a new model may have given the name to another file.
        same = found.stored.entry.digest == stored.entry.digest
        if not same or not found.has(num_ctx, gpu):
            return None
        # Dictionaries keep their order, so the last key is the most recently used model.
        self._loaded[key] = self._loaded.pop(key)
        return found

    async def _load_or_reload(self, stored: Stored, asked: _Asked) -> Loaded:
        key = str(stored.entry.name)
        before = self._loaded.get(key)
        if before is not None:
            # A context that cannot be loaded must not unload the model that is there.
            if asked.num_ctx is not None and asked.num_ctx < 1:
                raise OptionError(f"num_ctx: {asked.num_ctx}, needs at least 1")
            if self._measure is not None:
                room = await asyncio.to_thread(self._measure, *asked.arguments(stored))
                _require_possible(stored, room)
            await self._unload(key)
        self._loaded[key] = await self._load(stored, asked, before)
        return self._loaded[key]

    async def _evict(self) -> None:
        """Unload the least recently used model, an idle one first."""
        # Dictionaries keep their order, so the first one was used longest ago.
        idle = [key for key, each in self._loaded.items() if not each.users or each.lost]
        await self._unload(idle[0] if idle else next(iter(self._loaded)))

    async def _unload(self, key: str) -> None:
        """Close a model when its last request is done."""
        leaving = self._loaded[key]
        leaving.leaving = True
        while leaving.users and not leaving.lost:
            self._idle.clear()
            await self._idle.wait()
        await asyncio.to_thread(leaving.close)
        del self._loaded[key]

    async def _load(self, stored: Stored, asked: _Asked, before: Loaded | None) -> Loaded:
        """Load a model; if its file was loaded before, with the adapters' scales of that time."""
        begin = time.monotonic()
        await self._make_room(stored, asked)
        while True:
            try:
                model = await asyncio.to_thread(self._open, *asked.arguments(stored))
                break
            # The estimate is only a bound; only the device knows.
            except OutOfMemory:
                if not self._loaded:
                    raise
                await self._evict()
        seconds = time.monotonic() - begin
        keep = self._keep_seconds
        loaded = Loaded(stored, model, seconds, keep, asked=asked.num_ctx, gpu=asked.gpu)
        if before is None or before.lora_scales is None:
            return loaded
        # Another file may have other adapters.
        if before.stored.entry.digest == stored.entry.digest:
            await asyncio.to_thread(loaded.set_lora_scales, before.lora_scales)
        return loaded

    async def _make_room(self, stored: Stored, asked: _Asked) -> None:
        while len(self._loaded) >= self._most:
            await self._evict()
        while self._measure is not None:
            room = await asyncio.to_thread(self._measure, *asked.arguments(stored))
            _require_possible(stored, room)
            if room.free is None or room.needed <= room.free or not self._loaded:
                return
            await self._evict()

    async def unload(self, name: str) -> None:
        """Unload a model when its last request is done, without waiting for that.

        Does nothing if it is not loaded.
        """
        found = self._loaded.get(name)
        if found is None:
            return
        found.keep_seconds = 0.0
        if not found.users and not self._changing.locked():
            # Cancelling must not stop it half way: the model would take no more requests.
            await asyncio.shield(self._unload_expired())

    async def expire(self) -> None:
        """Unload models whose time is up, for as long as the server runs.

        Models whose worker has ended are loaded again, so that the next request need not wait.
        """
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if any(each.lost or each.seconds_left == 0 for each in self._loaded.values()):
                await asyncio.shield(self._unload_expired())

    async def _unload_expired(self) -> None:
        async with self._changing:
            for key, each in list(self._loaded.items()):
                if self._loaded.get(key) is not each:
                    # Loading an earlier one has unloaded this one to make room.
                    continue
                if each.lost:
                    await self._renew(key)
                elif not each.users and each.seconds_left == 0:
                    await self._unload(key)

    async def _renew(self, key: str) -> None:
        before = self._loaded[key]
        await self._unload(key)
        if before.seconds_left == 0:
            return
        try:
            self._loaded[key] = await self._load(
                before.stored, _Asked(before.asked, before.gpu), before
            )
        except Exception as error:
            # The next request fails with the same error, and reports it to a client.
            _LOG.warning("%s: not loaded again: %s", key, error)
        else:
            self._loaded[key].keep_seconds = before.keep_seconds

    async def close(self) -> None:
        """Close all models; requests in progress fail."""
        # Workers that are still loading end first; else closing would wait for them.
        if isinstance(self._open, Workers | ClusterOpener):
            self._open.close()
        async with self._changing:
            await asyncio.gather(
                *(asyncio.to_thread(each.close) for each in self._loaded.values()),
                return_exceptions=True,
            )
            self._loaded.clear()


def _require_possible(stored: Stored, room: MemoryEstimate) -> None:
    if room.total is not None and room.needed > room.total:
        raise OutOfMemory(
            f"{stored.entry.name}: needs about {binary_size(room.needed)}, the device has "
            f"{binary_size(room.total)}; choose a smaller num_ctx or a smaller model"
        )
