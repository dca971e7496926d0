"""The caller's handle of a request: its events, its result, and cancellation."""

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
    """A queue of events from the engine's thread to waiting threads and event loops.

    Parameters
    ----------
    choices : int
        Number of choices, each of which has a last event.
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
        """Number of choices whose last event has not arrived."""
        return self._left

    @property
    def ended(self) -> bool:
        """Return whether no more events follow."""
        return not self._left or self.error is not None

    def put(self, event: Event) -> None:
        """Add an event, unless the mailbox has ended."""
        wake(self.add(event))

    def add(self, event: Event) -> list[Waiter]:
        """Add an event, unless the mailbox has ended; the caller must wake event loops.

        Returns
        -------
        list of Waiter
            Waiters in event loops; waiting threads are woken already.
        """
        with self._changed:
            if not self.ended:
                self.events.append(event)
                self._left -= event.finish is not None
            return self._take_waiters()

    def fail(self, error: Exception) -> None:
        """End with an error, unless the mailbox has ended."""
        with self._changed:
            if not self.ended:
                self.error = error
            waiters = self._take_waiters()
        wake(waiters)

    def _take_waiters(self) -> list[Waiter]:
        """Wake threads, and take the waiters in event loops."""
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        return waiters

    def has(self, count: int) -> bool:
        """Return whether there are more than `count` events, or no more will arrive."""
        return len(self.events) > count or self.ended

    def take(self) -> list[Event]:
        """Remove and return the present events; `result` and later iterations lack them."""
        with self._changed:
            taken, self.events = self.events, []
        return taken

    def wait(self, count: int, timeout: float | None = None) -> bool:
        """Wait until `has` is true; return False after the timeout."""
        end = None if timeout is None else time.monotonic() + timeout

        def ready(pause: float) -> bool:
            left = pause if end is None else min(pause, end - time.monotonic())
            with self._changed:
                self._changed.wait_for(lambda: self.has(count), max(left, 0))
            return self.has(count) or (end is not None and time.monotonic() >= end)

        wait_until(ready)
        return self.has(count)

    async def wait_async(self, count: int) -> None:
        """Wait until `has` is true, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            future: asyncio.Future[None] = loop.create_future()
            with self._changed:
                if self.has(count):
                    return
                # Under the lock, so that no event comes between the check and the registration.
                self._waiters.append((loop, future))
            await future

    def result(self) -> Result:
        """Return the result, once the mailbox has ended."""
        if self.error is not None:
            raise self.error
        return Result.of(self.events, self.choices)


def wake(waiters: Iterable[Waiter]) -> None:
    """Wake waiters in event loops: each loop only once, since that takes a system call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        # A closed loop has no waiters left.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, futures)


def _set(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class Generation:
    """An answer that is being generated.

    Iterate over it for events, in a thread or with ``async for``; `result` or ``await`` waits for
    the whole answer. Each iteration begins with the first event. Leaving it as a context manager,
    or dropping it, cancels unfinished choices.

    Attributes
    ----------
    id : int
        Number of the request.
    """

    def __init__(
        self, id_: int, request: Request, mailbox: Mailbox, cancel: Callable[[int], None]
    ) -> None:
        self.id = id_
        self.request = request
        self._mailbox = mailbox
        # An answer without a reader should not hold a slot.
        self._cancel = weakref.finalize(self, cancel, id_)
        self._cancel.atexit = False

    @property
    def done(self) -> bool:
        """Return whether the answer is complete or has failed."""
        return self._mailbox.ended

    def cancel(self) -> None:
        """Stop within a step, from any thread; safe to call again or after the end.

        Unfinished choices end with the reason ``cancelled``.
        """
        self._cancel()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the whole answer.

        Parameters
        ----------
        timeout : float or None
            Seconds to wait; None for no limit.

        Raises
        ------
        BackendError
            The request failed.
        TimeoutError
            The answer is not complete in time; the request continues.
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
        """Yield events, waiting for each.

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
        """Yield events, without blocking the event loop.

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
        """Yield and remove events, without blocking the event loop; `result` will lack them.

        Yields
        ------
        event : Event
        more : bool
            Whether another event is present already.

        Raises
        ------
        BackendError
            The request failed.
        """
        mailbox = self._mailbox
        while True:
            await mailbox.wait_async(0)
            # Events are removed: a server that streams a long answer never asks for all of it.
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
