# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Times of dispatches: by the device's clock if it has one, else by the host's.

Each dispatch gets a pass of its own: time stamps inside one pass may be taken while other
dispatches still run.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import wgpu

from wgpu_backend.device.buffers import Pool
from wgpu_backend.device.queue import Command, Queue
from wgpu_backend.device.readback import Slot

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
