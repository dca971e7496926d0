"""Results of replays that are on their way to the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from wgpu_backend.device.binds import round_up
from wgpu_backend.device.ending import delay_if_over
from wgpu_backend.device.interrupts import held, uninterrupted
from wgpu_backend.device.readback import Slot
from wgpu_backend.errors import DeviceError


class Waiting(Protocol):
    """An object with work to do while the host waits for the device."""

    label: str

    def prepare(self) -> None:
        """Do the work; never fails."""
        ...


class Reading:
    """The bytes of replays that were submitted together, on their way to the host.

    Parameters
    ----------
    slot : Slot
        Where they arrive.
    program : Waiting
        Whose slot it is, and who lives until the bytes are there.
    """

    def __init__(self, slot: Slot, program: Waiting) -> None:
        self._slot: Slot | None = slot
        self._label = program.label
        self._program: Waiting | None = program
        self._data = b""
        # Reentrant: a signal handler may close what its own thread is reading.
        self._lock = threading.RLock()

    @uninterrupted
    def wait(self) -> bytes:
        """Return all bytes; calling it again returns the same."""
        delay_if_over()
        if (program := self._program) is not None:
            # Not under the lock below: a replay that holds the queue takes that lock.
            program.prepare()
        with self._lock:
            if not self._data:
                if self._slot is None:
                    raise DeviceError(f"{self._label}: closed before its results were read")
                self._data = self._slot.finish(self._label)
                self._slot = self._program = None
            return self._data

    def drop(self) -> None:
        """Forget the slot, after a read in progress; later reads fail."""
        with held(), self._lock:
            self._slot = self._program = None


class Pending:
    """The results of one replay.

    Parameters
    ----------
    reading : Reading or None
        What brings the bytes; None when nothing is read.
    at : int
        Byte of it where those of this replay begin.
    sizes : sequence of int
        Bytes of each read.
    """

    def __init__(self, reading: Reading | None, at: int, sizes: Sequence[int]) -> None:
        self._reading = reading
        self._at = at
        self._sizes = sizes
        self._data: list[bytes] = []

    def wait(self) -> list[bytes]:
        """Return the bytes of each of the Program's reads, in order; again if called again.

        Without reads there is nothing to wait for: the list is empty at once.

        Raises
        ------
        DeviceLost
            The device was lost before they were there.
        DeviceError
            The Program or the device was closed before.
        """
        if (reading := self._reading) is not None:
            self._data = split(reading.wait(), self._sizes, self._at)
            self._reading = None
        return self._data


def split(data: bytes, sizes: Sequence[int], at: int = 0) -> list[bytes]:
    """Split the bytes of a slot into the reads; each starts at a multiple of 4."""
    parts: list[bytes] = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += round_up(size)
    return parts
