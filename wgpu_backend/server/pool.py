"""Models that are loaded, and how long they stay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.errors import OutOfMemory
from wgpu_backend.model_store.stored import Stored
from wgpu_backend.serving.engine import Engine

Open = Callable[[Stored, int | None], LanguageModel]
"""Loads a model with a context of so many positions; None for its own."""


@dataclass(slots=True, eq=False)
class Loaded:
    """A model that is loaded.

    Parameters
    ----------
    stored : Stored
    model : LanguageModel
    engine : Engine or None
        None for encoders, which make no text.
    load_seconds : float
    keep_seconds : float
        How long it stays behind its last request; negative for ever.
    users : int
        Requests that are under way.
    idle_since : float
        Of the clock that only goes forward.
    """

    stored: Stored
    model: LanguageModel
    engine: Engine | None
    load_seconds: float
    keep_seconds: float
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """Until it goes; None where it stays."""
        if self.keep_seconds < 0:
            return None
        if self.users:
            return self.keep_seconds
        return max(0.0, self.idle_since + self.keep_seconds - time.monotonic())

    def close(self) -> None:
        """Give its memory back."""
        if self.engine is not None:
            self.engine.close()
        self.model.close()


class Pool:
    """Loads models when they are asked for, one at a time, and unloads those nobody asks for.

    Parameters
    ----------
    open_model : callable
    keep_seconds : float
        How long a model stays behind its last request, where that says nothing; negative for ever.
    most : int
        Models that are loaded at once.
    max_queue : int
        Requests that may wait for each model.
    """

    def __init__(self, open_model: Open, keep_seconds: float, most: int, max_queue: int) -> None:
        self._open = open_model
        self._keep_seconds = keep_seconds
        self._most = most
        self._max_queue = max_queue
        self._loaded: dict[str, Loaded] = {}
        self._changing = asyncio.Lock()
        self._idle = asyncio.Event()

    def loaded(self) -> list[Loaded]:
        """Models that are loaded, the one used last at the end."""
        return list(self._loaded.values())

    @asynccontextmanager
    async def using(
        self, stored: Stored, num_ctx: int | None = None, keep_seconds: float | None = None
    ) -> AsyncGenerator[Loaded]:
        """Hold a model; it is loaded where it is not.

        Parameters
        ----------
        stored : Stored
        num_ctx : int or None
            A model that has another context is loaded again when nobody uses it.
        keep_seconds : float or None
        """
        # A client that goes away while a model loads must not leave half of one.
        task = asyncio.create_task(self._taken(stored, num_ctx, keep_seconds))
        try:
            found = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._abandoned)
            raise
        try:
            yield found
        finally:
            self._release(found)

    async def _taken(
        self, stored: Stored, num_ctx: int | None, keep_seconds: float | None
    ) -> Loaded:
        async with self._changing:
            found = await self._found(stored, num_ctx)
            if keep_seconds is not None:
                found.keep_seconds = keep_seconds
            found.users += 1
            return found

    def _abandoned(self, task: asyncio.Task[Loaded]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._release(task.result())

    def _release(self, found: Loaded) -> None:
        found.users -= 1
        found.idle_since = time.monotonic()
        self._idle.set()

    async def _found(self, stored: Stored, num_ctx: int | None) -> Loaded:
        key = str(stored.entry.name)
        there = self._loaded.pop(key, None)
        if there is not None:
            self._loaded[key] = there  # at the end: used last
            same = there.stored.entry.digest == stored.entry.digest
            if same and num_ctx in (None, there.model.num_ctx):
                return there
            await self._unload(key)
        while len(self._loaded) >= self._most:
            await self._unload(self._oldest())
        self._loaded[key] = await self._load(stored, num_ctx)
        return self._loaded[key]

    def _oldest(self) -> str:
        idle = [key for key, each in self._loaded.items() if not each.users]
        return idle[0] if idle else next(iter(self._loaded))

    async def _unload(self, key: str) -> None:
        """Close a model when its last request is done."""
        while self._loaded[key].users:
            self._idle.clear()
            await self._idle.wait()
        await asyncio.to_thread(self._loaded.pop(key).close)

    async def _load(self, stored: Stored, num_ctx: int | None) -> Loaded:
        begin = time.monotonic()
        while True:
            try:
                model = await asyncio.to_thread(self._open, stored, num_ctx)
                break
            except OutOfMemory:
                if not self._loaded:
                    raise
                await self._unload(self._oldest())
        makes_text = model.model.has_logits
        engine = Engine(model, max_queue=self._max_queue) if makes_text else None
        seconds = time.monotonic() - begin
        return Loaded(stored, model, engine, seconds, self._keep_seconds)

    async def unload(self, name: str) -> None:
        """Unload a model when its last request is done; harmless where it is not loaded."""
        async with self._changing:
            if name in self._loaded:
                await self._unload(name)

    async def expire(self) -> None:
        """Unload what nobody asked for in time, for as long as the server runs."""
        while True:
            await asyncio.sleep(0.2)
            await asyncio.shield(self._expired())

    async def _expired(self) -> None:
        async with self._changing:
            for key, each in list(self._loaded.items()):
                if not each.users and each.seconds_left == 0:
                    await self._unload(key)

    async def close(self) -> None:
        """Close all models; requests that are under way fail."""
        async with self._changing:
            for each in self._loaded.values():
                await asyncio.to_thread(each.close)
            self._loaded.clear()
