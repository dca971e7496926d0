"""The interpreter's end: devices are closed before it, once their calls in progress have ended.

Daemon threads run on while the interpreter shuts down, and end where they next take its lock. A
thread inside the graphics library at that moment, or entering it after its objects were freed,
would abort the process. So an exit handler, which Python calls when all other threads have ended,
closes every device: it waits for calls in progress and refuses later ones.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from wgpu_backend.device.interrupts import held
from wgpu_backend.errors import DeviceError

# The delay of a refused daemon thread. The interpreter has ended by then, so that the thread does
# not print an error while stdout is flushed for the last time.
_STAY_SECONDS = 1.0


class Closing(Protocol):
    """An object that is closed at the end."""

    def close(self) -> None:
        """Wait for calls in progress and free everything; calling it again is harmless."""
        ...


class _Open:
    """The objects to close, and whether it is too late to open more."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.devices: weakref.WeakSet[Closing] = weakref.WeakSet()
        self.over = False


_open = _Open()


@contextmanager
def not_at_end(subject: str) -> Generator[None]:
    """Let one thread at a time query adapters or open a device, until the interpreter ends.

    Raises
    ------
    DeviceError
        The interpreter is ending.
    """
    with lock_adapters():
        if not _open.over:
            yield
            return
    delay_if_over()
    raise DeviceError(f"{subject}: the interpreter is ending")


@contextmanager
def lock_adapters() -> Generator[None]:
    """Keep other threads from querying or releasing adapters.

    Those of OpenGL share a context, and wgpu-native aborts the process when two threads want it.
    """
    with held(), _open.lock:
        yield


def close_at_end(device: Closing) -> None:
    """Register a device to be closed at the end if it still exists; call it inside `not_at_end`."""
    _open.devices.add(device)


def is_over() -> bool:
    """Return whether devices were closed because the interpreter ends."""
    return _open.over


def delay_if_over() -> None:
    """Make a daemon thread wait if the process is exiting; the caller should not hold a lock."""
    if _open.over and threading.current_thread().daemon:
        time.sleep(_STAY_SECONDS)


@atexit.register
def _close_all() -> None:
    with _open.lock:
        _open.over = True
        devices = list(_open.devices)
    for device in devices:
        device.close()


def _forget() -> None:
    """Forget the devices in a forked child: they are the parent's, and so is the lock's holder."""
    global _open
    _open = _Open()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
