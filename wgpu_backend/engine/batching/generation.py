"""What a caller holds while an engine answers: events, the result, and a way to stop it."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from types import TracebackType

from wgpu_backend.device.interrupts import wait_until
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event, Result

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Mailbox:
    """Events from the engine's thread to whoever waits for them, in threads and event loops.

    Parameters
    ----------
    choices : int
        Last events until it is whole.
    """

    def __init__(self, choices: int) -> None:
        self.choices = choices
        self.events: list[Event] = []
        self.error: Exception | None = None
        self._left = choices
        self._changed = threading.Condition()
        self._waiters: list[Waiter] = []

    @property
    def left(self) -> int:
        """Choices whose last event has not come."""
        return self._left

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return not self._left or self.error is not None

    def put(self, event: Event) -> None:
        """Add an event; nothing behind the end."""
        wake(self.add(event))

    def add(self, event: Event) -> list[Waiter]:
        """Add an event, nothing behind the end, for a caller that wakes event loops itself.

        Returns
        -------
        list of Waiter
            Who waits for it in event loops; threads are woken here.
        """
        with self._changed:
            if not self.ended:
                self.events.append(event)
                self._left -= event.finish is not None
            return self._taken()

    def fail(self, error: Exception) -> None:
        """End with an error, unless it has ended."""
        with self._changed:
            if not self.ended:
                self.error = error
            waiters = self._taken()
        wake(waiters)

    def _taken(self) -> list[Waiter]:
        """Wake threads, and say who waits in event loops."""
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        return waiters

    def has(self, count: int) -> bool:
        """Whether there are more events than that, or none will come."""
        return len(self.events) > count or self.ended

    def take(self) -> list[Event]:
        """Take the events that are there; `result` and later iterations lack them."""
        with self._changed:
            taken, self.events = self.events, []
        return taken

    def wait(self, count: int, timeout: float | None = None) -> bool:
        """Wait until `has`; False where the time is over before."""
        end = None if timeout is None else time.monotonic() + timeout

        def ready(pause: float) -> bool:
            left = pause if end is None else min(pause, end - time.monotonic())
            with self._changed:
                self._changed.wait_for(lambda: self.has(count), max(left, 0))
            return self.has(count) or (end is not None and time.monotonic() >= end)

        wait_until(ready)
        return self.has(count)

    async def wait_async(self, count: int) -> None:
        """Wait until `has`, while the event loop goes on."""
        loop = asyncio.get_running_loop()
        while True:
            future: asyncio.Future[None] = loop.create_future()
            with self._changed:
                if self.has(count):
                    return
                self._waiters.append((loop, future))
            await future

    def result(self) -> Result:
        """All of it, once it has ended."""
        if self.error is not None:
            raise self.error
        return Result.of(self.events, self.choices)


def wake(waiters: Iterable[Waiter]) -> None:
    """Wake who waits in event loops: each loop once, as that takes a system call.

    Parameters
    ----------
    waiters : iterable of Waiter
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        # A loop that was closed has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, futures)


def _set(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class Generation:
    """An answer that is being made.

    Iterate over it for events, in a thread or with ``async for``; `result` waits for the whole, as
    ``await`` does. Each iteration begins with the first event. Leaving it as a context manager, or
    dropping it, cancels what is not done.

    Attributes
    ----------
    id : int
        Number of the request.
    request : Request
    """

    def __init__(
        self, id_: int, request: Request, mailbox: Mailbox, cancel: Callable[[int], None]
    ) -> None:
        self.id = id_
        self.request = request
        self._mailbox = mailbox
        self._cancel = weakref.finalize(self, cancel, id_)
        self._cancel.atexit = False

    @property
    def done(self) -> bool:
        """Whether all of it is there, or it failed."""
        return self._mailbox.ended

    def cancel(self) -> None:
        """Stop within a step, from any thread; again, or at the end, is harmless.

        Choices that are not done end with the reason ``cancelled``.
        """
        self._cancel()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the whole.

        Parameters
        ----------
        timeout : float or None
            Seconds.

        Raises
        ------
        BackendError
            The request failed.
        TimeoutError
            It is not done by then; it goes on.
        """
        count = 0
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            left = None if end is None else end - time.monotonic()
            if not self._mailbox.wait(count, left):
                raise TimeoutError(f"request {self.id}: not done after {timeout} s")
            count = len(self._mailbox.events)
        return self._mailbox.result()

    def __iter__(self) -> Iterator[Event]:
        """Events; waits for each.

        Raises
        ------
        BackendError
            The request failed.
        """
        mailbox, count = self._mailbox, 0
        while True:
            mailbox.wait(count)
            if count >= len(mailbox.events):
                break
            yield mailbox.events[count]
            count += 1
        if mailbox.error is not None:
            raise mailbox.error

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events, while the event loop goes on.

        Raises
        ------
        BackendError
            The request failed.
        """
        mailbox, count = self._mailbox, 0
        while True:
            await mailbox.wait_async(count)
            if count >= len(mailbox.events):
                break
            yield mailbox.events[count]
            count += 1
        if mailbox.error is not None:
            raise mailbox.error

    async def taken(self) -> AsyncIterator[tuple[Event, bool]]:
        """Events, while the event loop goes on; none is kept, so `result` has nothing of them.

        Yields
        ------
        event : Event
        more : bool
            Whether another one is there already.

        Raises
        ------
        BackendError
            The request failed.
        """
        mailbox = self._mailbox
        while True:
            await mailbox.wait_async(0)
            waiting = deque(mailbox.take())
            if not waiting:
                break
            while waiting:
                event = waiting.popleft()
                yield event, bool(waiting or mailbox.events)
        if mailbox.error is not None:
            raise mailbox.error

    def __await__(self) -> Generator[None, None, Result]:
        return self._whole().__await__()

    async def _whole(self) -> Result:
        while not self.done:
            await self._mailbox.wait_async(len(self._mailbox.events))
        return self._mailbox.result()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
