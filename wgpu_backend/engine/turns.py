"""A lock that threads get in the order in which they ask for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
POLL_SECONDS = 0.1  # after which a waiting thread looks again, should nobody have rung its bell


class _Place:
    """One thread's place in the line."""

    __slots__ = ("bell", "thread")

    def __init__(self) -> None:
        self.bell = threading.Lock()
        self.bell.acquire()
        self.thread = threading.get_ident()


class Turns:
    """Lets one thread at a time run something, first come, first served.

    Python's own locks may be taken again and again by the thread that has just let go, while others
    wait for ever. Whoever is first in the line has the lock here, and leaving the line is a single
    call of a deque: a Ctrl-C at whatever moment leaves nothing locked. A thread that has its turn
    may ask again, as a signal handler does, and does not wait for itself.
    """

    def __init__(self) -> None:
        self._line: deque[_Place] = deque()

    def take(self, act: Callable[[], Result]) -> Result:
        """Wait for a turn, and run something in it."""
        if self.mine():
            return act()
        place = _Place()
        try:
            self._line.append(place)
            while self._line[0] is not place:
                # Locks of Windows hear no Ctrl-C while they are waited for.
                place.bell.acquire(timeout=POLL_SECONDS)
            return act()
        finally:
            try:  # noqa: SIM105  a call before `remove` is where a Ctrl-C may land
                self._line.remove(place)
            except ValueError:  # Ctrl-C came before the place was in the line
                pass
            self._ring()

    def offer(self, act: Callable[[], object]) -> bool:
        """Run something now if nobody has a turn or waits for one; False if it was not run."""
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
            except ValueError:  # Ctrl-C came before the place was in the line
                pass
            self._ring()

    def mine(self) -> bool:
        """Whether it is the calling thread's turn."""
        try:
            return self._line[0].thread == threading.get_ident()
        except IndexError:
            return False

    def _ring(self) -> None:
        """Wake whoever is first now; who was woken already does not mind."""
        try:
            self._line[0].bell.release()
        except (IndexError, RuntimeError):
            return
