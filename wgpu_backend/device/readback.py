# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Transfers from the device to the host through buffers that are kept, and times of dispatches.

Dispatches are timed by the device's clock if it has one, else by the host's. Each gets a pass of
its own: time stamps inside one pass may be taken while other dispatches still run.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import wgpu

from wgpu_backend.device.binds import Range, round_up
from wgpu_backend.device.buffers import Pool
from wgpu_backend.device.native import BufferMapping
from wgpu_backend.device.queue import Command, Copy, Queue


class Slot:
    """A host-visible buffer: `take` ranges, run its copies, `start`, and `finish` when needed.

    Parameters
    ----------
    nbytes : int
        Bytes it holds, a multiple of 4.

    Attributes
    ----------
    copies : list of list of Copy
        For `Queue.run`, see `take`.
    busy : bool
        Whether it was started and is not finished.
    """

    def __init__(self, queue: Queue, pool: Pool, nbytes: int) -> None:
        self._queue = queue
        self.nbytes = nbytes
        self.buffer = pool.acquire(nbytes, "readback")
        self.copies: list[list[Copy]] = []
        self.busy = False
        self._wanted = 0
        self._index: object = None
        self._mapping: BufferMapping | None = None

    def take(self, ranges: Sequence[Range], times: int = 1) -> None:
        """Make the copies that bring ranges into the slot one after the other, `times` times."""
        self.copies = []
        at = 0
        for _ in range(times):
            copies: list[Copy] = []
            for buffer, offset, nbytes in ranges:
                size = round_up(nbytes)
                copies.append(self._queue.copying(buffer.raw, offset, self.buffer.raw, at, size))
                at += size
            self.copies.append(copies)

    def start(self, index: object, nbytes: int) -> None:
        """Request the first `nbytes` bytes as they are after a submission."""
        self._index, self._wanted, self.busy = index, nbytes, True
        native = self._queue.native
        if native is None:
            return
        if self._mapping is None:
            self._mapping = native.mapping(self._queue.gpu, self._queue.mapped_or_lost)
        self._mapping.start(self.buffer.raw, nbytes)

    def finish(self, subject: str) -> bytes:
        """Wait for the bytes.

        Raises
        ------
        DeviceLost
            The device was lost before they were there.
        """
        self._queue.guard(subject)
        with self._queue.translate_errors(subject):
            data = self._read() if self._mapping is None else self._mapping.wait(self._index)
            self.busy = False
            return data

    def _read(self) -> bytes:
        """Read the bytes by wgpu-py's own methods."""
        raw = self.buffer.raw
        # The copy is submitted already.
        promise = raw.map_async("READ_NOSYNC", 0, self._wanted)
        # wgpu-py's own polling thread ends where a device is destroyed, so this thread polls.
        self._queue.wait()
        promise.sync_wait()
        with self._queue.mapped_or_lost(raw):
            data = bytes(cast("memoryview", raw.read_mapped(0, self._wanted, copy=False)))
            raw.unmap()
            return data

    def release(self) -> None:
        """Release the buffer."""
        self.copies = []
        self.buffer.release()


# Two stamps of 8 bytes for a dispatch.
_STAMPS_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one dispatch.

    Parameters
    ----------
    label : str
        The dispatch's.
    shader : str
        The shader's label.
    """

    label: str
    shader: str
    seconds: float


def measure(queue: Queue, pool: Pool, commands: Sequence[Command]) -> list[float]:
    """Run commands one after the other; return the seconds each took.

    The caller holds the lock and has checked the buffers.
    """
    if not commands:
        return []
    if queue.native is not None and "timestamp-query" in queue.gpu.features:
        return _by_device_clock(queue, pool, commands)
    return [_by_host_clock(queue, command) for command in commands]


def _by_host_clock(queue: Queue, command: Command) -> float:
    queue.flush()
    start = time.perf_counter()
    queue.wait(queue.run([command]))
    return time.perf_counter() - start


def _by_device_clock(queue: Queue, pool: Pool, commands: Sequence[Command]) -> list[float]:
    count = 2 * len(commands)
    gpu = queue.gpu
    stamps = gpu.create_query_set(type="timestamp", count=count)
    usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
    resolved = gpu.create_buffer(size=8 * count, usage=usage)
    slot = Slot(queue, pool, 8 * count)
    try:
        encoder = queue.encoder()
        for number, command in enumerate(commands):
            # A plain mapping, as each implementation has a class of its own.
            writes = {
                "query_set": stamps,
                "beginning_of_pass_write_index": 2 * number,
                "end_of_pass_write_index": 2 * number + 1,
            }
            queue.encode(encoder, [command], writes)
        encoder.resolve_query_set(stamps, 0, count, resolved, 0)
        encoder.copy_buffer_to_buffer(resolved, 0, slot.buffer.raw, 0, 8 * count)
        slot.start(queue.submit(encoder), slot.nbytes)
        return _seconds(slot.finish("timings"), queue)
    finally:
        slot.release()
        resolved.destroy()


def _seconds(data: bytes, queue: Queue) -> list[float]:
    tick = queue.tick_seconds()
    return [(end - begin) * tick for begin, end in struct.iter_unpack("<2Q", data)]
