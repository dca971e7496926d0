"""The inputs of replays in host memory, with a place for each replay of one submit."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.device.binds import Binder, check_copy
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.queue import Copy
from wgpu_backend.errors import DeviceError

Given = tuple[Binding, memoryview]
"""The place from which every replay reads, and the bytes of each replay of a submit, in order."""


class Ring:
    """A ring of inputs: one replay gets its inputs by a write, several of a submit by copies.

    A write comes before all that is submitted next, so what several replays of a submit are given
    is written to a buffer of its own, from where commands of each copy its part.

    Parameters
    ----------
    subject : str
        Name for messages.
    binder : Binder
        Of the program.
    given : tuple of Binding and memoryview
        Offset and bytes are multiples of 4.
    times : int
        Replays of a submit at most.

    Raises
    ------
    DeviceError
        The place is not in a live buffer of the device, or the bytes do not fill it `times` times.
    """

    def __init__(self, subject: str, binder: Binder, given: Given, times: int) -> None:
        self._queue = binder.queue
        binding, data = given
        self.place = check_copy(f"{subject}: given", binding, binder.pool)
        target, offset, nbytes = self.place
        if data.nbytes != times * nbytes or nbytes % 4:
            needed = f"{times} times {nbytes}" if times > 1 else nbytes
            raise DeviceError(
                f"{subject}: given {data.nbytes} bytes for {needed}, needs a multiple of 4"
            )
        self._data = data.cast("B")
        self._buffer: Buffer | None = None
        self._fetches: list[Copy] = []
        if times > 1:
            self._buffer = binder.pool.acquire(data.nbytes, "inputs", f"{subject} ring")
            self._fetches = [
                self._queue.copying(self._buffer.raw, turn * nbytes, target.raw, offset, nbytes)
                for turn in range(times)
            ]

    def write(self, count: int) -> None:
        """Write the current inputs of the next replays."""
        buffer, offset, nbytes = self.place
        # A single replay is written in place, which saves its copy.
        if count > 1 and self._buffer is not None:
            buffer, offset = self._buffer, 0
        self._queue.write(buffer.raw, offset, self._data[: count * nbytes])

    def fetch(self, turn: int) -> Sequence[Copy]:
        """Return the copy with which one of several replays begins."""
        return self._fetches[turn : turn + 1]

    def release(self) -> None:
        """Release the buffer."""
        self._fetches = []
        if self._buffer is not None:
            self._buffer.release()
            self._buffer = None
