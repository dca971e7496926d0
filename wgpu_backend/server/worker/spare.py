"""A spare worker process that has imported its modules and waits for a model.

Imports take half of the time to load a small model. A spare saves that time, also after a worker
has died. It opens no device, and ends with its socket, as every worker does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from wgpu_backend.server.worker.channel import Channel, Exit
from wgpu_backend.server.worker.frames import Message

_LOG = logging.getLogger("wgpu_backend.worker")
# Delay after a load, so that its first request gets the processor.
AFTER_SECONDS = 2.0
_EXIT_SECONDS = 2.0
Receive = Callable[[Message, bytes], None]
HandleExit = Callable[[Exit], None]
Start = Callable[[Receive, HandleExit], Channel]
"""A function that starts a worker process, as `Channel` does."""


class Spare:
    """A spare process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: tuple[Receive, HandleExit] | None = None
        self._over = False
        self._channel = Channel(self._receive, self._handle_exit)
        self.pid = self._channel.pid

    @property
    def over(self) -> bool:
        """Return whether the process has ended."""
        return self._over

    def hand_over(self, receive: Receive, handle_exit: HandleExit) -> Channel | None:
        """Hand over the process to a new owner; None if it has ended."""
        with self._lock:
            if self._over:
                return None
            self._owner = receive, handle_exit
            return self._channel

    def _receive(self, message: Message, raw: bytes) -> None:
        if self._owner is not None:
            self._owner[0](message, raw)

    def _handle_exit(self, ending: Exit) -> None:
        with self._lock:
            self._over = True
        if self._owner is not None:
            self._owner[1](ending)

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._channel.kill()
        self._channel.close(_EXIT_SECONDS)


class Spares:
    """A supply of one spare process, started some time after each load.

    Parameters
    ----------
    after_seconds : float or None
        Time after a load until a spare starts; None for no spare.
    """

    def __init__(self, after_seconds: float | None = AFTER_SECONDS) -> None:
        self._after = after_seconds
        self._lock = threading.Lock()
        self._spare: Spare | None = None
        self._timer: threading.Timer | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the spare; None if there is none."""
        spare = self._spare
        return None if spare is None or spare.over else spare.pid

    def start(self, receive: Receive, handle_exit: HandleExit) -> Channel:
        """Return the spare process, or a new one."""
        with self._lock:
            spare, self._spare = self._spare, None
        channel = None if spare is None else spare.hand_over(receive, handle_exit)
        # The spare may have died, or another load took it.
        return channel or Channel(receive, handle_exit)

    def prepare(self) -> None:
        """Schedule a new spare; returns at once."""
        with self._lock:
            if self._closed or self._after is None:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._after, self._start_spare)
            self._timer.name, self._timer.daemon = "spare worker", True
            self._timer.start()

    def _start_spare(self) -> None:
        with self._lock:
            if self._closed or self.pid is not None:
                return
            try:
                self._spare = Spare()
            except OSError as error:
                # Loading the next model reports the error.
                _LOG.debug("no spare worker: %s", error)

    def close(self) -> None:
        """End the spare, and start no more. Safe to call twice."""
        with self._lock:
            self._closed = True
            spare, self._spare = self._spare, None
            if self._timer is not None:
                self._timer.cancel()
        if spare is not None:
            spare.close()
