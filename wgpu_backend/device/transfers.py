"""Transfers between the host and a device's buffers and textures, in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.device.binds import copying, padded, resolved
from wgpu_backend.device.buffers import Binding, Buffer, Pool, Texture
from wgpu_backend.device.host_bytes import Data, bytes_of
from wgpu_backend.device.queue import Queue
from wgpu_backend.device.readback import Slot
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import TEXEL_ROW_NBYTES

# Bytes moved at once. wgpu copies what is written into staging memory of its own and frees that
# after a submit, so more than this would hold a second copy of a model on the host.
CHUNK_NBYTES = 16 << 20


class Transfers:
    """The copies of one device, see the methods of `Device` by the same names."""

    def __init__(self, queue: Queue, pool: Pool) -> None:
        self._queue, self._pool = queue, pool
        self._slot: Slot | None = None
        self._unflushed = 0

    def drop(self) -> None:
        """Drop the buffer through which bytes are read."""
        self._slot = None

    def write(self, buffer: Buffer, data: Data, offset: int = 0) -> None:
        """Copy bytes from the host; later replays see them."""
        view = bytes_of(data)
        if not view.nbytes:
            return
        subject = f"write {buffer.label or buffer.purpose}"
        with self._queue.entered(subject):
            self._range(subject, buffer, offset, view.nbytes)
            with self._queue.translated(subject):
                for at in range(0, view.nbytes, CHUNK_NBYTES):
                    self._write(buffer, view[at : at + CHUNK_NBYTES], offset + at)

    def write_texel_rows(self, texture: Texture, data: Data, first: int = 0) -> None:
        """Copy whole rows from the host; later replays see them."""
        view = bytes_of(data)
        subject = f"write {texture.label or texture.purpose}"
        if view.nbytes % TEXEL_ROW_NBYTES:
            raise DeviceError(
                f"{subject}: {view.nbytes} bytes, rows of texels have {TEXEL_ROW_NBYTES}"
            )
        with self._queue.entered(subject):
            self._range(subject, texture, first * TEXEL_ROW_NBYTES, view.nbytes)
            with self._queue.translated(subject):
                for at in range(0, view.nbytes, CHUNK_NBYTES):
                    chunk = view[at : at + CHUNK_NBYTES]
                    row, rows = first + at // TEXEL_ROW_NBYTES, chunk.nbytes // TEXEL_ROW_NBYTES
                    self._queue.write_texel_rows(texture.texture, row, rows, chunk)
                    self._staged(chunk.nbytes)

    def read(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Copy bytes to the host, after everything submitted before."""
        subject = f"read {buffer.label or buffer.purpose}"
        if nbytes == 0:
            return b""
        with self._queue.entered(subject):
            size = buffer.nbytes - offset if nbytes is None else nbytes
            self._range(subject, buffer, offset, size)
            parts = [
                self._read(subject, buffer, offset + at, min(CHUNK_NBYTES, size - at))
                for at in range(0, size, CHUNK_NBYTES)
            ]
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def copy(self, pairs: Sequence[tuple[Binding, Binding]]) -> None:
        """Copy ranges of buffers into others of the same size."""
        with self._queue.entered("copy"):
            copies = [copying(*pair, self._pool, self._queue) for pair in pairs]
            with self._queue.translated("copy"):
                self._queue.run([], copies)

    def clear(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> None:
        """Set bytes to zero, up to a multiple of 4 of them."""
        subject = f"clear {buffer.label or buffer.purpose}"
        with self._queue.entered(subject):
            size = buffer.nbytes - offset if nbytes is None else nbytes
            self._range(subject, buffer, offset, size)
            with self._queue.translated(subject):
                encoder = self._queue.encoder()
                encoder.clear_buffer(buffer.raw, offset, padded(size))
                self._queue.submit(encoder)

    def _range(self, subject: str, buffer: Buffer, offset: int, nbytes: int) -> None:
        if nbytes < 1:
            raise DeviceError(f"{subject}: {nbytes} bytes at {offset}, at least 1 is needed")
        resolved(subject, Binding(buffer, offset, nbytes), self._pool)
        if offset % 4:
            raise DeviceError(f"{subject}: offset {offset}, a multiple of 4 is needed")

    def _write(self, buffer: Buffer, view: memoryview, offset: int) -> None:
        """Write one chunk, which stays in staging memory until a submit."""
        even = view.nbytes & ~3
        if even:
            self._queue.write(buffer.raw, offset, view[:even])
        if even < view.nbytes:
            tail = memoryview(bytes(view[even:]).ljust(4, b"\0"))
            self._queue.write(buffer.raw, offset + even, tail)
        self._staged(view.nbytes)

    def _staged(self, nbytes: int) -> None:
        """Wait for the device when a chunk's worth is staged."""
        self._unflushed += nbytes
        if self._unflushed >= CHUNK_NBYTES:
            self._queue.flush()
            self._unflushed = 0

    def _read(self, subject: str, buffer: Buffer, offset: int, nbytes: int) -> bytes:
        size = padded(nbytes)
        if self._slot is None or self._slot.nbytes < size:
            if self._slot is not None:
                self._slot.release()
            self._slot = None
            self._slot = Slot(self._queue, self._pool, size)
        with self._queue.translated(subject):
            self._slot.take([(buffer, offset, nbytes)])
            self._slot.start(self._queue.run([], self._slot.copies[0]), size)
        return self._slot.finish(subject)[:nbytes]
