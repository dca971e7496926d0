"""Admission control: the callers' side of an engine's queue."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wgpu_backend.errors import BackendError, QueueFull


class Intake:
    """A counter of choices that were admitted and have not ended.

    Parameters
    ----------
    name : str
        Name of the model, for messages.
    slots, waiting : int
        Choices that run at once, and choices that may wait.
    """

    def __init__(self, name: str, slots: int, waiting: int) -> None:
        self._name = name
        self._slots = slots
        self._waiting = waiting
        self._taken = 0
        self._closed = False
        self._lock = threading.Lock()

    def take(self, choices: int, put: Callable[[], object]) -> None:
        """Admit choices and call `put`; raise QueueFull if there are too many."""
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
        """Subtract choices that have ended."""
        with self._lock:
            self._taken -= choices

    def require_open(self) -> None:
        """Raise if the engine was closed."""
        if self._closed:
            raise BackendError(f"{self._name}: the engine was closed; make another one")

    def close(self) -> None:
        """Refuse new choices from now on."""
        with self._lock:
            self._closed = True
