"""A first-come, first-served lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
# Waiting threads also poll, in case an interrupt prevented their wake-up.
POLL_SECONDS = 0.1


class _Place:
    """The place of a thread in the queue."""

    __slots__ = ("bell", "thread")

    def __init__(self) -> None:
        self.bell = threading.Lock()
        # Locked from the start, so that the first `acquire` of the waiting thread waits for a ring.
        self.bell.acquire()
        self.thread = threading.get_ident()


class FifoLock:
    """A FIFO lock: one thread at a time runs a function, first come, first served.

    With Python's own locks, a thread that releases the lock may take it again and again while
    others starve. Here the first thread in the queue has the lock, and leaving the queue is a
    single call of a deque: a Ctrl-C at any moment leaves nothing locked. The lock is reentrant,
    for signal handlers.
    """

    def __init__(self) -> None:
        self._line: deque[_Place] = deque()

    def take(self, act: Callable[[], Result]) -> Result:
        """Wait for the lock, and run a function while holding it."""
        if self.mine():
            return act()
        place = _Place()
        try:
            # Within `try`: a Ctrl-C may come right after it, and the place must go then, too.
            self._line.append(place)
            while self._line[0] is not place:
                # On Windows a Ctrl-C does not interrupt waiting for a lock without a timeout.
                place.bell.acquire(timeout=POLL_SECONDS)
            return act()
        finally:
            try:  # noqa: SIM105  a call before `remove` is where a Ctrl-C may land
                self._line.remove(place)
            except ValueError:
                # Ctrl-C came before the place was in the line.
                pass
            self._ring()

    def offer(self, act: Callable[[], object]) -> bool:
        """Run a function if the lock is free, without waiting; return False if it is not."""
        place = _Place()
        try:
            self._line.append(place)
            if self._line[0] is not place:
                return False
            act()
            return True
        finally:
            try:  # noqa: SIM105  a call before `remove` is where a Ctrl-C may land
                self._line.remove(place)
            except ValueError:
                # Ctrl-C came before the place was in the line.
                pass
            self._ring()

    def mine(self) -> bool:
        """Return whether the calling thread holds the lock."""
        try:
            return self._line[0].thread == threading.get_ident()
        except IndexError:
            return False

    def _ring(self) -> None:
        """Wake the first thread in the queue; harmless if it is awake."""
        try:
            self._line[0].bell.release()
        # The queue is empty, or the bell has rung already: releasing a free lock raises.
        except (IndexError, RuntimeError):
            return
