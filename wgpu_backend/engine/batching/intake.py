"""How many choices an engine has taken in: the callers' side of its queue."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wgpu_backend.errors import BackendError, QueueFull


class Intake:
    """Counts what was taken in and has not ended: the caller's side of the queue.

    Parameters
    ----------
    name : str
        Of the model, for messages.
    slots, waiting : int
        Choices that are made at once, and that may wait.
    """

    def __init__(self, name: str, slots: int, waiting: int) -> None:
        self._name = name
        self._slots = slots
        self._waiting = waiting
        self._taken = 0
        self._closed = False
        self._lock = threading.Lock()

    def take(self, choices: int, put: Callable[[], object]) -> None:
        """Take choices in, unless there are too many."""
        with self._lock:
            self.require_open()
            if self._taken + choices > self._slots + self._waiting:
                raise QueueFull(
                    f"submit: {max(0, self._taken - self._slots)} of {self._waiting} places in the "
                    f"queue are taken, {choices} more do not fit; try again later"
                )
            self._taken += choices
            put()

    def give_back(self, choices: int) -> None:
        """Take in that so many have ended."""
        with self._lock:
            self._taken -= choices

    def require_open(self) -> None:
        """Fail where the engine was closed."""
        if self._closed:
            raise BackendError(f"{self._name}: the engine was closed; make another one")

    def close(self) -> None:
        """Take nothing in from now on."""
        with self._lock:
            self._closed = True
