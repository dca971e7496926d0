# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""An opened device: buffers, textures, pipelines, programs, and bytes in and out."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

from wgpu_backend.device import dawn
from wgpu_backend.device.adapters import (
    find_adapter,
    find_device,
    open_adapter,
    read_capabilities,
)
from wgpu_backend.device.binds import Binder, Dispatch, make_copy, resolve_range, round_up
from wgpu_backend.device.buffers import Binding, Buffer, Pool, Texture
from wgpu_backend.device.ending import close_at_end, not_at_end
from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.device.memory import MemoryReport, Purpose, budget
from wgpu_backend.device.native import Native, load
from wgpu_backend.device.pipelines import Pipeline, Pipelines
from wgpu_backend.device.program import Program
from wgpu_backend.device.queue import Counters, Queue
from wgpu_backend.device.readback import Slot
from wgpu_backend.device.ring import Given
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.errors import DeviceError, Unclosed
from wgpu_backend.graph.capabilities import (
    HOST_FEATURE,
    TEXEL_ROW_NBYTES,
    Capabilities,
    DeviceInfo,
    Profile,
)

Data = bytes | bytearray | memoryview | NDArray[Any]
# Bytes moved at once. wgpu copies what is written into staging memory of its own and frees that
# after a submit, so more than this would hold a second copy of a model on the host.
CHUNK_NBYTES = 16 << 20


class Device:
    """A GPU, or a software rasteriser, ready for work.

    Use it as a context manager, or `close` it. Threads may share it: everything that submits
    takes one lock, which is not held while a thread waits for results. A forked child may not use
    it.

    Attributes
    ----------
    capabilities : Capabilities
        What the adapter reports, for the profile it was opened with; executors have more.
    profile : str
        ``full`` or ``baseline``.
    reads_host_memory : bool
        Whether kernels can bind buffers in the host's memory.
    """

    def __init__(
        self, info: DeviceInfo, gpu: wgpu.GPUDevice, profile: Profile, *, native: bool
    ) -> None:
        self.info = info
        self.profile: Profile = profile
        self._capabilities = read_capabilities(info, gpu)
        # The queue must not keep its device alive, or neither would be released.
        this = weakref.ref(self)

        def report() -> str:
            device = this()
            return "" if device is None else str(device.memory_report())

        self._queue = Queue(gpu, _direct_calls(info, native=native), report, info.id)
        most = budget(on_host=self.capabilities.software)
        # Dawn has no such feature.
        self.reads_host_memory: bool = HOST_FEATURE in gpu.features
        host = budget(on_host=True) if self.reads_host_memory else None
        self._pool = Pool(self._queue, self.capabilities.max_buffer_nbytes, most, host)
        self._pipelines = Pipelines(self._queue, self.capabilities)
        self._programs: weakref.WeakSet[Program] = weakref.WeakSet()
        # The slot through which bytes are read back.
        self._slot: Slot | None = None
        # Bytes written since the last flush.
        self._unflushed = 0
        self.unclosed = Unclosed(str(self))
        close_at_end(self)

    @classmethod
    @not_at_end("open")
    def open(
        cls,
        which: str | DeviceInfo | None = None,
        *,
        profile: Profile = "full",
        native: bool = True,
        implementation: str | None = None,
    ) -> Device:
        """Open a device.

        Parameters
        ----------
        which : str, DeviceInfo or None
            What ``Devices().find`` understands, an entry of it, or None for the best.
        profile : str
            ``full`` requests the adapter's limits and every feature that kernels can use;
            ``baseline`` for WebGPU's default limits and no features.
        native : bool
            Whether to call the C library directly where that is faster; Dawn always is.
        implementation : str or None
            ``wgpu``, ``dawn`` or ``auto``; None for that of `which` or of the environment, see
            `find_adapter`.

        Raises
        ------
        DeviceError
            There is no such adapter, or it is the NumPy device, which needs no opening.
        """
        info = find_device(which)
        if info.kind == "cpu":
            raise DeviceError(
                "device cpu: it computes with NumPy and is not opened, a GPU or a software "
                "rasteriser is needed; install a Vulkan driver, Mesa's lavapipe for example"
            )
        opened, adapter = find_adapter(info, implementation)
        # Raises before there is anything to release.
        _direct_calls(opened, native=native)
        return cls(opened, open_adapter(opened, adapter, profile), profile, native=native)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Device({self.info.id}, {self.info.name}, {self.profile})"

    @property
    def capabilities(self) -> Capabilities:
        """The features that the adapter reports, as far as kernels use them."""
        return self._capabilities

    @property
    def lost(self) -> bool:
        """True if the driver is known to have lost the device."""
        return self._queue.lost

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._queue.closed

    @property
    def native(self) -> bool:
        """True if the C library is called directly."""
        return self._queue.native is not None

    @property
    def counters(self) -> Counters:
        """The objects made and submits done so far."""
        return self._queue.counters

    def buffer(self, nbytes: int, *, purpose: Purpose, label: str = "") -> Buffer:
        """Allocate a buffer; its bytes are undefined, `clear` zeroes them.

        Parameters
        ----------
        nbytes : int
            At least 1.
        purpose : str
            What it is accounted as: ``weights``, ``cache``, ``activations``, ``inputs``,
            ``params``, ``staging``, or ``readback``, which the host maps and no kernel can bind.
            ``host weights`` and ``host cache`` are in the host's memory, which kernels read over
            the bus.
        label : str
            Name for messages.

        Raises
        ------
        OutOfMemory
            More than one buffer may hold, or than there is.
        """
        return self._pool.acquire(nbytes, purpose, label)

    def write(self, buffer: Buffer, data: Data, offset: int = 0) -> None:
        """Copy bytes from the host; later replays see them.

        Parameters
        ----------
        data : bytes-like or ndarray
            Any number of bytes; up to 3 bytes after them become zero, to a multiple of 4.
        offset : int
            First byte in the buffer, a multiple of 4.

        Raises
        ------
        DeviceError
            The buffer is released, too small, or the offset not a multiple of 4.
        """
        view = as_bytes(data)
        if not view.nbytes:
            return
        subject = f"write {buffer.label or buffer.purpose}"
        with self._queue.enter(subject):
            self._range(subject, buffer, offset, view.nbytes)
            with self._queue.translate_errors(subject):
                for at in range(0, view.nbytes, CHUNK_NBYTES):
                    self._write(buffer, view[at : at + CHUNK_NBYTES], offset + at)

    def texture(self, rows: int, *, purpose: Purpose, label: str = "") -> Texture:
        """Allocate a texture; its texels are undefined.

        Parameters
        ----------
        rows : int
            Of `ROW_TEXELS` texels each, up to `MAX_TEXEL_ROWS`.
        purpose, label
            See `buffer`.

        Raises
        ------
        DeviceError
            There are too many rows.
        OutOfMemory
            More than there is.
        """
        return self._pool.texture(rows, purpose, label)

    def write_texel_rows(self, texture: Texture, data: Data, first: int = 0) -> None:
        """Copy whole rows of texels from the host; later replays see them.

        Parameters
        ----------
        data : bytes-like or ndarray
            `TEXEL_ROW_NBYTES` for each row of texels.
        first : int
            Line that the first of them becomes.

        Raises
        ------
        DeviceError
            The texture is released, or `data` leaves it or ends within a row.
        """
        view = as_bytes(data)
        subject = f"write {texture.label or texture.purpose}"
        if view.nbytes % TEXEL_ROW_NBYTES:
            raise DeviceError(
                f"{subject}: {view.nbytes} bytes, rows of texels have {TEXEL_ROW_NBYTES}"
            )
        with self._queue.enter(subject):
            self._range(subject, texture, first * TEXEL_ROW_NBYTES, view.nbytes)
            with self._queue.translate_errors(subject):
                for at in range(0, view.nbytes, CHUNK_NBYTES):
                    chunk = view[at : at + CHUNK_NBYTES]
                    row, rows = first + at // TEXEL_ROW_NBYTES, chunk.nbytes // TEXEL_ROW_NBYTES
                    self._queue.write_texel_rows(texture.texture, row, rows, chunk)
                    self._flush_if_full(chunk.nbytes)

    def read(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Copy bytes to the host, after everything submitted before.

        Parameters
        ----------
        offset : int
            First byte, a multiple of 4.
        nbytes : int or None
            How many; None for all up to the end.

        Raises
        ------
        DeviceError
            The buffer is released, or the range leaves it.
        """
        subject = f"read {buffer.label or buffer.purpose}"
        if nbytes == 0:
            return b""
        with self._queue.enter(subject):
            size = buffer.nbytes - offset if nbytes is None else nbytes
            self._range(subject, buffer, offset, size)
            parts = [
                self._read(subject, buffer, offset + at, min(CHUNK_NBYTES, size - at))
                for at in range(0, size, CHUNK_NBYTES)
            ]
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def copy(self, pairs: Sequence[tuple[Binding, Binding]]) -> None:
        """Copy ranges of buffers into others of the same size, after everything submitted before.

        Raises
        ------
        DeviceError
            A buffer is released, a range leaves one or is of another size, or both are one buffer.
        """
        with self._queue.enter("copy"):
            copies = [make_copy(*pair, self._pool, self._queue) for pair in pairs]
            with self._queue.translate_errors("copy"):
                self._queue.run([], copies)

    def clear(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> None:
        """Set bytes to zero, up to a multiple of 4 of them.

        Parameters
        ----------
        offset : int
            First byte, a multiple of 4.
        nbytes : int or None
            How many; None for all up to the end.

        Raises
        ------
        DeviceError
            The buffer is released, or the range leaves it.
        """
        subject = f"clear {buffer.label or buffer.purpose}"
        with self._queue.enter(subject):
            size = buffer.nbytes - offset if nbytes is None else nbytes
            self._range(subject, buffer, offset, size)
            with self._queue.translate_errors(subject):
                encoder = self._queue.encoder()
                encoder.clear_buffer(buffer.raw, offset, round_up(size))
                self._queue.submit(encoder)

    def pipeline(self, shader: Shader) -> Pipeline:
        """Return the pipeline of a shader, compiling it the first time.

        Raises
        ------
        ShaderError
            The WGSL does not compile; the message shows file, line and place.
        """
        return self._pipelines.get(shader)

    def make_binder(self) -> Binder:
        """Return a maker of bind groups, for one Program."""
        return Binder(self._queue, self._pool, self.capabilities)

    def bind(self, binder: Binder, dispatch: Dispatch) -> None:
        """Make the bind group of a dispatch before its Program; raises like `program`."""
        with self._queue.enter(dispatch.name):
            binder.group(dispatch)

    def program(
        self,
        dispatches: Sequence[Dispatch],
        *,
        reads: Sequence[Binding] = (),
        given: Given | None = None,
        label: str = "",
        times: int = 1,
        binder: Binder | None = None,
    ) -> Program:
        """Record dispatches for replay.

        Parameters
        ----------
        reads : sequence of Binding
            What each replay copies to the host at its end.
        given : tuple of Binding and memoryview, or None
            Bytes of the host that each replay copies to the device at its start, as they are then;
            for each of `times` replays.
        label : str
            Name for messages.
        times : int
            Replays that may go in one submit, see `Program.replays`.
        binder : Binder or None
            Has the bind groups of some dispatches, see `bind`; None to make all of them.

        Raises
        ------
        DeviceError
            A binding or a number of work groups does not suit the device.
        """
        with self._queue.enter(label or "program"):
            binder = binder or self.make_binder()
            program = Program(binder, dispatches, reads, given, label, times)
            self._programs.add(program)
            return program

    def memory_report(self) -> MemoryReport:
        """Return the use of device memory."""
        return self._pool.report()

    def trim(self, keep_nbytes: int = 0) -> None:
        """Free memory that the pool keeps for reuse, down to `keep_nbytes`."""
        self._pool.trim(keep_nbytes)

    def keep_for_reuse(self, nbytes: int) -> None:
        """Set how many released bytes the pool keeps at most from now on."""
        self._pool.keep_nbytes = nbytes
        self._pool.trim(nbytes)

    def wait(self) -> None:
        """Wait until everything submitted is done."""
        with self._queue.enter("wait"), self._queue.translate_errors("wait"):
            self._queue.flush()

    @uninterrupted
    def close(self) -> None:
        """Free everything on the device; harmless if called again or in a forked child.

        Threads that are reading results get them first.
        """
        self.unclosed.silence()
        if self._queue.forked:
            return
        # Releasing a device during a compilation or a read aborts the process.
        self._pipelines.settle()
        for program in list(self._programs):
            program.close()
        with self._queue.lock:
            if self.closed:
                return
            # Another thread may have made programs meanwhile.
            for program in list(self._programs):
                program.close()
            # Its copies keep buffers alive.
            self._slot = None
            self._pool.close()
            self._pipelines.close()
            self._queue.close()

    def lose_for_test(self) -> None:
        """Make the driver lose the device, to test the consequences."""
        self._queue.lose()

    def _range(self, subject: str, buffer: Buffer, offset: int, nbytes: int) -> None:
        if nbytes < 1:
            raise DeviceError(f"{subject}: {nbytes} bytes at {offset}, at least 1 is needed")
        resolve_range(subject, Binding(buffer, offset, nbytes), self._pool)
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
        self._flush_if_full(view.nbytes)

    def _flush_if_full(self, nbytes: int) -> None:
        """Wait for the device when a chunk's worth is staged."""
        self._unflushed += nbytes
        if self._unflushed >= CHUNK_NBYTES:
            self._queue.flush()
            self._unflushed = 0

    def _read(self, subject: str, buffer: Buffer, offset: int, nbytes: int) -> bytes:
        size = round_up(nbytes)
        if self._slot is None or self._slot.nbytes < size:
            if self._slot is not None:
                self._slot.release()
            self._slot = None
            self._slot = Slot(self._queue, self._pool, size)
        with self._queue.translate_errors(subject):
            self._slot.take([(buffer, offset, nbytes)])
            self._slot.start(self._queue.run([], self._slot.copies[0]), size)
        return self._slot.finish(subject)[:nbytes]


def _direct_calls(info: DeviceInfo, *, native: bool) -> Native | None:
    """Return the direct calls of the implementation that opened a device.

    None for wgpu-py's own methods: they were asked for, or this version lacks a call.
    """
    if info.implementation != "dawn":
        return load() if native else None
    found = dawn.load() if native else None
    if found is None:
        why = "this wgpudawn lacks some of them" if native else "native=False forbids them"
        raise DeviceError(f"device {info.id}: Dawn needs direct calls, but {why}")
    return found


def as_bytes(data: Data) -> memoryview:
    """View contiguous data as bytes; copy other data."""
    if isinstance(data, np.ndarray):
        flat: NDArray[Any] = np.ascontiguousarray(data).reshape(-1)
        return memoryview(flat.view(np.uint8).data)
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
