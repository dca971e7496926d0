# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Buffers, textures, and the pool they come from.

A Buffer is a handle on a raw wgpu buffer. A released handle stays dead. Its raw buffer waits in the
pool for the next handle of about its size, with its old bytes, or is destroyed. A Texture is the
same on a wgpu texture, which kernels only read.
"""

from __future__ import annotations

import bisect
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import wgpu

from wgpu_backend.device.interrupts import held
from wgpu_backend.device.memory import (
    HOST_PURPOSES,
    PURPOSES,
    Ledger,
    MemoryReport,
    Purpose,
    format_bytes,
)
from wgpu_backend.device.queue import Queue
from wgpu_backend.errors import DeviceError, OutOfMemory
from wgpu_backend.graph.capabilities import (
    HOST_FEATURE,
    MAX_TEXEL_ROWS,
    ROW_TEXELS,
    TEXEL_ROW_NBYTES,
)

B = TypeVar("B", bound="Buffer")

# Uniform buffers of at least 256 bytes suit every driver's rounding of a binding's size.
_ROUND = 256
# Bytes the pool keeps for reuse: activations of a few shapes of batch, not a second model.
POOL_NBYTES = 256 << 20
# A buffer is reused for requests down to three quarters of its size, small ones for any.
_FIT = 0.75
_SMALL = 4096
# Purposes whose sizes do not come back, so that keeping the memory would not help; readback
# buffers have a usage of their own besides.
_UNPOOLED: frozenset[Purpose] = frozenset({"weights", "cache", *HOST_PURPOSES, "readback"})
_USAGE = (
    wgpu.BufferUsage.STORAGE
    | wgpu.BufferUsage.UNIFORM
    | wgpu.BufferUsage.COPY_SRC
    | wgpu.BufferUsage.COPY_DST
)
# wgpu places a buffer that can be mapped for reading in the host's memory. One for writing may lie
# in the part of a GPU's memory that the host can address.
_HOST_USAGE = _USAGE | wgpu.BufferUsage.MAP_READ
TEXTURE_FORMAT = "rgba32uint"
_TEXTURE_USAGE = wgpu.TextureUsage.STORAGE_BINDING | wgpu.TextureUsage.COPY_DST
_READBACK_USAGE = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST


class Buffer:
    """Device memory of a fixed size.

    Attributes
    ----------
    nbytes : int
        Bytes asked for.
    purpose : str
        What it is accounted as.
    label : str
        Name for messages.
    capacity : int
        Bytes set aside, at least `nbytes`.
    alive : bool
        False once released, or its device closed.
    """

    __slots__ = ("__weakref__", "_pool", "_raw", "alive", "capacity", "label", "nbytes", "purpose")

    def __init__(
        self, pool: Pool, raw: wgpu.GPUBuffer | None, nbytes: int, purpose: Purpose, label: str
    ) -> None:
        self._pool = pool
        self._raw = raw
        self.nbytes = nbytes
        self.capacity = nbytes if raw is None else int(raw.size)
        self.purpose: Purpose = purpose
        self.label = label
        self.alive = True

    def __del__(self) -> None:
        if getattr(self, "alive", False):
            self._pool.drop(self)

    def __repr__(self) -> str:
        state = "" if self.alive else ", released"
        return f"Buffer({self.label or self.purpose}, {format_bytes(self.nbytes)}{state})"

    @property
    def raw(self) -> wgpu.GPUBuffer:
        """The wgpu buffer, for the modules of `device` alone.

        Raises
        ------
        DeviceError
            The buffer was released.
        """
        if self._raw is None:
            raise DeviceError(f"{self} is used after its release")
        return self._raw

    def detach(self) -> wgpu.GPUBuffer | wgpu.GPUTexture:
        """Take the wgpu buffer away, after which the handle is dead."""
        raw, self._raw, self.alive = self.raw, None, False
        return raw

    def belongs_to(self, pool: Pool) -> bool:
        """Return whether this buffer came from that pool, and so from its device."""
        return self._pool is pool

    def release(self) -> None:
        """Release the memory; calling it again is harmless."""
        self._pool.release(self)

    def release_soon(self) -> None:
        """Release the memory without waiting, for finalisers: later, if the lock is taken."""
        self._pool.release_soon(self)


class Texture(Buffer):
    """Device memory that kernels read texel by texel, 16 bytes each.

    Attributes
    ----------
    rows : int
        Of `ROW_TEXELS` texels each.
    """

    __slots__ = ("_texture", "rows", "view")

    def __init__(
        self, pool: Pool, texture: wgpu.GPUTexture, rows: int, purpose: Purpose, label: str
    ) -> None:
        super().__init__(pool, None, rows * TEXEL_ROW_NBYTES, purpose, label)
        self._texture = texture
        self.view: wgpu.GPUTextureView = texture.create_view()
        self.rows = rows

    @property
    def raw(self) -> wgpu.GPUBuffer:
        """Raise an error: a texture has no buffer."""
        raise DeviceError(
            f"{self} is a texture, which is written by rows of texels and bound to be read"
        )

    @property
    def texture(self) -> wgpu.GPUTexture:
        """The wgpu texture, for the modules of `device` alone.

        Raises
        ------
        DeviceError
            The texture was released.
        """
        if not self.alive:
            raise DeviceError(f"{self} is used after its release")
        return self._texture

    def detach(self) -> wgpu.GPUTexture:
        """Take the wgpu texture away, after which the handle is dead."""
        texture, self.alive = self.texture, False
        return texture


@dataclass(frozen=True, slots=True)
class Binding:
    """A range of a buffer that a kernel sees, or a whole texture.

    Parameters
    ----------
    offset : int
        First byte, a multiple of ``Capabilities.binding_alignment``.
    nbytes : int
        Bytes seen; 0 means up to the end of the buffer.
    """

    buffer: Buffer
    offset: int = 0
    nbytes: int = 0


class Pool:
    """A pool that allocates buffers, accounts for them, and keeps released ones for reuse.

    Parameters
    ----------
    max_buffer_nbytes : int
        Largest buffer of the device.
    budget : callable
        Given the bytes handed out, gives the most there may be, or None: for platforms that would
        not refuse in time.
    host : callable or None
        The same for buffers in the host's memory; None if the device cannot read it.
    """

    def __init__(
        self,
        queue: Queue,
        max_buffer_nbytes: int,
        budget: Callable[[int], int | None],
        host: Callable[[int], int | None] | None = None,
    ) -> None:
        self._queue = queue
        self._max = max_buffer_nbytes
        self._budget = budget
        self._host = host
        self._ledger = Ledger()
        self._live: weakref.WeakSet[Buffer] = weakref.WeakSet()
        # Sorted by capacity, then by serial: (capacity, serial, raw).
        self._free: list[tuple[int, int, wgpu.GPUBuffer]] = []
        self._free_nbytes = 0
        self._serial = 0
        self.keep_nbytes = POOL_NBYTES
        # Counts releases: a program that has checked its buffers need not check again until it
        # changes.
        self.epoch = 0

    def report(self) -> MemoryReport:
        """Return the memory in use at this moment."""
        with held(), self._queue.lock:
            return self._ledger.report(self._free_nbytes)

    def acquire(self, nbytes: int, purpose: Purpose, label: str = "") -> Buffer:
        """Return a new or reused buffer.

        Raises
        ------
        DeviceError
            `nbytes` is not positive, the purpose is unknown, or it needs host memory, which the
            device cannot read.
        OutOfMemory
            More than one buffer may hold, or than there is.
        """
        subject = f"buffer {label or purpose}"
        if purpose not in PURPOSES:
            raise DeviceError(f"{subject}: purpose {purpose!r}, needs one of {', '.join(PURPOSES)}")
        if nbytes < 1:
            raise DeviceError(f"{subject}: {nbytes} bytes, a buffer holds at least 1")
        if purpose in HOST_PURPOSES and self._host is None:
            raise DeviceError(
                f"{subject}: the device cannot read the host's memory, because the feature "
                f"{HOST_FEATURE} is missing or its profile is baseline; keep it on the device"
            )
        capacity = -(-nbytes // _ROUND) * _ROUND
        with self._queue.enter(subject):
            # WebGPU allows MAP_READ with COPY_DST alone, so readback buffers cannot serve other
            # purposes. Those in the host's memory do not come from the device's.
            elsewhere = purpose == "readback" or purpose in HOST_PURPOSES
            raw = None if elsewhere else self._reuse(capacity)
            if raw is None:
                self._check(subject, nbytes, capacity)
                if purpose in HOST_PURPOSES:
                    self._check_host(subject, nbytes, capacity)
                raw = self._allocate(subject, capacity, purpose)
            return self._account(Buffer(self, raw, nbytes, purpose, label))

    def texture(self, rows: int, purpose: Purpose, label: str = "") -> Texture:
        """Return a new texture; releasing it destroys it.

        Raises
        ------
        DeviceError
            `rows` is not between 1 and `MAX_TEXEL_ROWS`.
        OutOfMemory
            More than there is.
        """
        subject = f"texture {label or purpose}"
        if not 0 < rows <= MAX_TEXEL_ROWS:
            raise DeviceError(f"{subject}: {rows} rows of texels, needs 1 to {MAX_TEXEL_ROWS}")
        with self._queue.enter(subject):
            self._check(subject, rows * TEXEL_ROW_NBYTES, rows * TEXEL_ROW_NBYTES)
            with self._queue.translate_errors(subject):
                texture = self._queue.gpu.create_texture(
                    size=(ROW_TEXELS, rows, 1), format=TEXTURE_FORMAT, usage=_TEXTURE_USAGE
                )
            self._queue.counters.buffers += 1
            return self._account(Texture(self, texture, rows, purpose, label))

    def release(self, buffer: Buffer) -> None:
        """Take a buffer back; calling it again, or after `close`, is harmless."""
        if self._queue.forked:
            return
        with held(), self._queue.lock:
            if not buffer.alive:
                return
            raw = self._retire(buffer)
            texture = isinstance(raw, wgpu.GPUTexture)
            # Buffers of a lost device are of no further use.
            if texture or buffer.purpose in _UNPOOLED or self._queue.lost:
                raw.destroy()
                return
            self._serial += 1
            entry = (buffer.capacity, self._serial, raw)
            bisect.insort(self._free, entry, key=lambda free: free[:2])
            self._free_nbytes += buffer.capacity
            self.trim(self.keep_nbytes)

    def release_soon(self, buffer: Buffer) -> None:
        """Take a buffer back now if the queue is free, else when its lock is released."""
        queue = self._queue
        if not (queue.closed or queue.forked or sys.is_finalizing()):
            queue.later(partial(self.release, buffer))

    def drop(self, buffer: Buffer) -> None:
        """Stop counting the memory of a garbage-collected buffer, without waiting for the queue.

        For finalisers. The raw buffer goes with its handle, and may be gone already: whatever a
        collection finds is finalised in any order.
        """
        queue = self._queue
        if not (queue.closed or queue.forked or sys.is_finalizing()):
            queue.later(partial(self._ledger.remove, buffer.purpose, buffer.capacity))

    def trim(self, keep_nbytes: int = 0) -> None:
        """Destroy free buffers, the longest unused first, until at most `keep_nbytes` are left."""
        with held(), self._queue.lock:
            while self._free and self._free_nbytes > keep_nbytes:
                oldest = min(self._free, key=lambda entry: entry[1])
                self._free.remove(oldest)
                self._free_nbytes -= oldest[0]
                oldest[2].destroy()

    def close(self) -> None:
        """Destroy every buffer, the ones in use too; their handles are dead."""
        with held(), self._queue.lock:
            for buffer in list(self._live):
                self._retire(buffer).destroy()
            self.trim()

    def _account(self, buffer: B) -> B:
        """Add a new handle to the accounts."""
        self._live.add(buffer)
        self._ledger.add(buffer.purpose, buffer.capacity)
        return buffer

    def _retire(self, buffer: Buffer) -> wgpu.GPUBuffer | wgpu.GPUTexture:
        """Make a handle dead and remove its raw buffer from the accounts."""
        self.epoch += 1
        self._live.discard(buffer)
        self._ledger.remove(buffer.purpose, buffer.capacity)
        return buffer.detach()

    def _reuse(self, capacity: int) -> wgpu.GPUBuffer | None:
        """Take the smallest free raw buffer that fits without wasting much."""
        at = bisect.bisect_left(self._free, capacity, key=lambda entry: entry[0])
        if at == len(self._free):
            return None
        size, _, raw = self._free[at]
        if size > _SMALL and capacity < size * _FIT:
            return None
        del self._free[at]
        self._free_nbytes -= size
        return raw

    def _check(self, subject: str, nbytes: int, capacity: int) -> None:
        """Refuse in advance more memory than the device or the host has."""
        report = self._ledger.report(self._free_nbytes)
        if capacity > self._max:
            raise OutOfMemory(
                f"{subject}: {format_bytes(nbytes)} ({nbytes} bytes) in one buffer, the device "
                f"allows {format_bytes(self._max)} ({self._max} bytes)",
                str(report),
            )
        budget = self._budget(report.nbytes)
        if budget is not None and report.nbytes + capacity > budget:
            raise OutOfMemory(
                f"{subject}: {format_bytes(nbytes)} with {format_bytes(report.nbytes)} in use, "
                f"the device has {format_bytes(budget)}",
                str(report),
            )

    def _check_host(self, subject: str, nbytes: int, capacity: int) -> None:
        """Refuse in advance more of the host's memory than there is."""
        used = self._ledger.host_nbytes
        budget = None if self._host is None else self._host(used)
        if budget is not None and used + capacity > budget:
            raise OutOfMemory(
                f"{subject}: {format_bytes(nbytes)} of the host's memory with "
                f"{format_bytes(used)} in use, the host has {format_bytes(budget)}",
                str(self._ledger.report(self._free_nbytes)),
            )

    def _allocate(self, subject: str, capacity: int, purpose: Purpose) -> wgpu.GPUBuffer:
        """Create a raw buffer; if memory is short, try again without the pool's reserve."""
        usage = _HOST_USAGE if purpose in HOST_PURPOSES else _USAGE
        usage = _READBACK_USAGE if purpose == "readback" else usage
        try:
            return self._create(subject, capacity, usage)
        except OutOfMemory:
            if not self._free:
                raise
            self.trim()
            # Waiting frees the staging memory of earlier writes, too.
            self._queue.flush()
            return self._create(subject, capacity, usage)

    def _create(self, subject: str, capacity: int, usage: int) -> wgpu.GPUBuffer:
        with self._queue.translate_errors(subject):
            raw = self._queue.gpu.create_buffer(size=capacity, usage=usage)
        self._queue.counters.buffers += 1
        return raw
