# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""The queue of a device: every submission passes here and is checked first.

wgpu-native aborts the process when a command buffer is submitted after device loss, submitted
twice, or refers to a destroyed buffer. So a command buffer is made here from an encoder, submitted
at once and dropped. Finishing the encoder raises an error on a lost device. Buffers are destroyed
and checked under `lock`. wgpu-native also aborts when a mapped range is read that a loss has
unmapped: `mapped_or_lost` checks first. A driver that resets in the microseconds between check and
submit still ends the process: for that case a server runs the engine in a process of its own.

Threads may share a device: `lock` is held while commands are encoded and submitted, not while
a thread waits for results. Ctrl-C is noted meanwhile and raised afterwards, see
`wgpu_backend.device.interrupts`; at the interpreter's end all calls are refused, see
`wgpu_backend.device.ending`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import wgpu

from wgpu_backend.device.ending import delay_if_over, is_over, lock_adapters
from wgpu_backend.device.faults import TranslateErrors, quiet
from wgpu_backend.device.interrupts import deliver, held, hold, release
from wgpu_backend.device.native import (
    Native,
    is_lost,
    leave_to_parents,
    release_all,
    stop_polling,
    wait_for_all,
)
from wgpu_backend.errors import DeviceError, DeviceLost, OutOfMemory

Command = tuple[Any, ...]
"""One dispatch as the encode loop takes it: pipeline, bind group, x, y, z."""
Copy = tuple[Any, ...]
"""One copy between buffers: source, offset, target, offset, bytes."""
Pass = tuple[Sequence[Command], Sequence[Copy]]
"""Dispatches, followed by copies."""
Recording = Any
"""Commands in an encoder, to be submitted once."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """Commands that are finished and wait for `Queue.send`."""

    commands: Any


@dataclass(slots=True)
class Counters:
    """The number of objects a device has made so far, and of submits to it."""

    buffers: int = 0
    pipelines: int = 0
    bind_groups: int = 0
    submits: int = 0
    dispatches: int = 0


class Queue:
    """The queue of one wgpu device, guarded against calls that would abort the process.

    Parameters
    ----------
    native : Native or None
        The fast path, or None for wgpu-py's own methods only.
    report : callable
        Gives the memory report for OutOfMemory.
    name : str
        Id of the device, for messages.
    """

    def __init__(
        self, gpu: wgpu.GPUDevice, native: Native | None, report: Callable[[], str], name: str
    ) -> None:
        self.gpu = gpu
        self.name = name
        self.native = native
        self.lock = threading.RLock()
        # Held while mapped bytes are read, see `mapped_or_lost`. Taken after `lock`.
        self._mapped = threading.RLock()
        self.counters = Counters()
        self.lost = False
        self.closed = False
        self._later: deque[Callable[[], None]] = deque()
        self._report = report
        self._pid = os.getpid()
        leave_to_parents()

    def __del__(self) -> None:
        # Every user of the device refers to its queue, so none is left.
        if not (getattr(self, "closed", True) or self.forked or sys.is_finalizing()):
            self.close()

    @property
    def forked(self) -> bool:
        """True if this process is a fork of the one that opened the device.

        The driver's threads do not exist here, and any lock may be held for ever: nothing may be
        called, not even to free memory.
        """
        return self._pid != os.getpid()

    def enter(self, subject: str) -> AbstractContextManager[None]:
        """Hold the lock of a device that passes `guard`."""
        return _Entered(self, subject)

    def later(self, act: Callable[[], None]) -> None:
        """Run `act` with the lock: now if it is free, else when its holder releases it.

        For finalisers: they run on any thread at any time, where waiting could be for ever.
        """
        with held():
            self._later.append(act)
            self.catch_up()

    def catch_up(self) -> None:
        """Run postponed calls if the lock is free; otherwise its holder runs them on release.

        That may be this thread: a finaliser runs in the midst of anything.
        """
        # A finaliser may interrupt code of this very thread that relies on the lock.
        if self.lock._is_owned():  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
            return
        while self._later and self.lock.acquire(blocking=False):
            try:
                # Another thread may have taken the last entry before this one got the lock.
                if self._later:
                    self._later.popleft()()
            finally:
                self.lock.release()

    def guard(self, subject: str) -> None:
        """Refuse a device that cannot be used.

        Raises
        ------
        DeviceError
            The device is closed, or this process is a fork of the one that opened it.
        DeviceLost
            The driver gave the device up.
        """
        if self.forked:
            raise DeviceError(
                f"{subject}: process {os.getpid()} is a fork of {self._pid}, which opened the "
                "device; start processes with the spawn method and open a device in each"
            )
        if self.closed:
            why = ", the interpreter is ending" if is_over() else ""
            raise DeviceError(f"{subject}: the device is closed{why}")
        if self.lost:
            raise self.loss(subject)

    def loss(self, subject: str) -> DeviceLost:
        """Return the error of a lost device, which names it: a model may be on several."""
        return DeviceLost(f"device {self.name}: {subject}: the driver gave it up; open a new one")

    def translate_errors(self, subject: str) -> AbstractContextManager[None]:
        """Raise our exceptions for wgpu's, and find out whether the device was lost."""
        return _Watched(self, subject, self._report)

    def find_loss(self) -> bool:
        """Check whether the device is lost, by a call that raises an error if so."""
        if not self.lost and not self.closed:
            with quiet():
                native = self.native
                self.lost = is_lost(self.gpu) if native is None else native.is_lost(self.gpu)
        return self.lost

    def mapped_or_lost(self, buffer: wgpu.GPUBuffer) -> AbstractContextManager[None]:
        """Prevent `lose` while mapped bytes are read; raise if the device is already lost.

        Waiting for a lost device destroys its buffers, and wgpu-native aborts the process when the
        range of a destroyed one is asked for.
        """
        return _Mapped(self, self._mapped, buffer)

    def encoder(self) -> wgpu.GPUCommandEncoder:
        """Start recording commands that `run` does not cover; pass the encoder to `submit`."""
        return self.gpu.create_command_encoder()

    def write(self, buffer: wgpu.GPUBuffer, offset: int, data: memoryview) -> None:
        """Copy bytes to a buffer before the next submission; offset and size: multiples of 4."""
        if self.native is not None:
            self.native.write(self.gpu, buffer, offset, data)
        else:
            self.gpu.queue.write_buffer(buffer, offset, data)

    def write_texel_rows(
        self, texture: wgpu.GPUTexture, first: int, rows: int, data: memoryview
    ) -> None:
        """Copy whole rows of texels to a texture, before the next submission."""
        self.gpu.queue.write_texture(
            {"texture": texture, "origin": (0, first, 0)},
            data,
            {"bytes_per_row": data.nbytes // rows, "rows_per_image": rows},
            (texture.width, rows, 1),
        )

    def command(
        self,
        pipeline: wgpu.GPUComputePipeline,
        group: wgpu.GPUBindGroup,
        counts: tuple[int, int, int],
    ) -> Command:
        """Return a dispatch command for `record` and `run`."""
        if self.native is not None:
            return self.native.command(pipeline, group, counts)
        return (pipeline, group, *counts)

    def copying(
        self, source: wgpu.GPUBuffer, offset: int, target: wgpu.GPUBuffer, at: int, nbytes: int
    ) -> Copy:
        """Return a copy command for `record` and `run`; offsets and sizes are multiples of 4."""
        if self.native is not None:
            return self.native.copying(source, offset, target, at, nbytes)
        return (source, offset, target, at, nbytes)

    def run(self, commands: Sequence[Command], copies: Sequence[Copy] = ()) -> object:
        """Submit dispatches, followed by copies.

        Returns
        -------
        object or None
            What `wait` takes to wait for this submission alone.
        """
        return self.send(self.record((commands, copies)))

    def record(self, *passes: Pass) -> Recording:
        """Record dispatches, followed by copies, for one `send` or for `drop`.

        They are not finished before they are due: wgpu-native never frees what is finished and not
        submitted.
        """
        if self.native is not None:
            return self.native.record(self.gpu, *passes)
        encoder = self.encoder()
        for commands, copies in passes:
            self.encode(encoder, commands)
            for copy in copies:
                encoder.copy_buffer_to_buffer(*copy)
        return encoder

    def send(self, recorded: Recording) -> object:
        """Submit recorded commands; return as `run` does."""
        if self.native is None:
            return self.submit(recorded)
        if isinstance(recorded, Sealed):
            index = self.native.send_sealed(self.gpu, recorded.commands)
        else:
            # Finishing raises if the device is lost, where submitting would abort.
            index = self.native.send(self.gpu, recorded)
        self.counters.submits += 1
        return index

    def seal(self, recorded: Recording) -> Recording:
        """Finish recorded commands that will be sent next, so that sending takes less time.

        A write must come before they are sent, which raises an error if the device is lost.
        Dropping them loses their memory until the process ends.
        """
        if self.native is None or not self.native.seals or isinstance(recorded, Sealed):
            return recorded
        return Sealed(self.native.seal(recorded))

    def drop(self, recorded: Recording) -> None:
        """Drop recorded commands instead of sending them."""
        if self.native is None:
            release_all([recorded])
        elif isinstance(recorded, Sealed):
            self.native.lib.wgpuCommandBufferRelease(recorded.commands)
        else:
            self.native.drop(recorded)

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        commands: Sequence[Command],
        timestamps: dict[str, Any] | None = None,
    ) -> None:
        """Record a compute pass of (pipeline, bind group, x, y, z); errors show in `submit`."""
        if not commands:
            return
        compute_pass = encoder.begin_compute_pass(timestamp_writes=timestamps)
        if self.native is not None:
            self.native.encode_in(compute_pass, commands)
        else:
            _encode(compute_pass, commands)
        compute_pass.end()

    def submit(self, encoder: wgpu.GPUCommandEncoder) -> object:
        """Finish an encoder and submit what it recorded, once.

        Returns
        -------
        object or None
            What `wait` takes to wait for this submission alone.
        """
        # Finishing raises if the device is lost, where submitting would abort.
        if self.native is not None:
            index = self.native.submit(self.gpu, encoder)
        else:
            index = None
            self.gpu.queue.submit([encoder.finish()])
        self.counters.submits += 1
        return index

    def wait(self, index: object = None) -> None:
        """Wait until a submission, or everything submitted, is done."""
        if self.native is not None:
            self.native.poll(self.gpu, index)
        else:
            wait_for_all(self.gpu)

    def tick_seconds(self) -> float:
        """Return the seconds of one tick of the device's clock; known to the fast path only."""
        return (self.native.timestamp_period(self.gpu) if self.native else 1.0) * 1e-9

    def flush(self) -> None:
        """Submit pending work and wait: this frees the staging memory of earlier writes."""
        self.wait(self.run([]))

    def close(self) -> None:
        """Release the device; buffers and bind groups are gone already."""
        self.closed = True
        with lock_adapters(), quiet():
            if stop_polling(self.gpu):
                release_all([self.gpu, self.gpu.adapter])

    def lose(self) -> None:
        """Make the device lost, as a driver reset would; for tests, from any thread."""
        with self.lock, self._mapped, quiet():
            if self.closed:
                return
            if self.native is not None:
                self.native.destroy(self.gpu)
            else:
                self.gpu.destroy()


def _encode(compute_pass: wgpu.GPUComputePassEncoder, commands: Sequence[Command]) -> None:
    """Record dispatches through wgpu-py's methods."""
    bound = None
    for pipeline, group, x, y, z in commands:
        # Neighbouring dispatches often share a pipeline, and each call costs time on the host.
        if pipeline is not bound:
            compute_pass.set_pipeline(pipeline)
            bound = pipeline
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(x, y, z)


class _Entered:
    """A context that holds the lock of a queue whose device may be used."""

    __slots__ = ("_held", "_queue", "_subject")

    def __init__(self, queue: Queue, subject: str) -> None:
        self._queue, self._subject = queue, subject
        self._held = False

    def __enter__(self) -> None:
        queue = self._queue
        # The lock may be held for ever in a fork, so the check comes before it.
        if queue.forked:
            queue.guard(self._subject)
        delay_if_over()
        deliver()
        # Before the lock is taken: an interrupt before `__exit__` would leave it held.
        self._held = hold()
        queue.lock.acquire()
        # Asked for here, since nearly every call finds neither.
        if queue.closed or queue.lost:
            try:
                queue.guard(self._subject)
            except BaseException:
                self._leave()
                raise

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        try:
            self._queue.lock.release()
            self._queue.catch_up()
        finally:
            if self._held:
                release()


class _Mapped:
    """A context in which a device is not lost; a class as `TranslateErrors`, and as often used."""

    __slots__ = ("_buffer", "_lock", "_queue")

    def __init__(self, queue: Queue, lock: threading.RLock, buffer: wgpu.GPUBuffer) -> None:
        self._queue, self._lock, self._buffer = queue, lock, buffer

    def __enter__(self) -> None:
        queue = self._queue
        self._lock.acquire()
        try:
            if queue.native is not None:
                queue.native.write_nothing(queue.gpu, self._buffer)
            elif queue.find_loss():
                queue.guard("read")
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Watched(TranslateErrors):
    """A `TranslateErrors` context that marks the queue if the device was lost."""

    __slots__ = ("_queue",)

    def __init__(self, queue: Queue, subject: str, report: Callable[[], str]) -> None:
        self._queue, self._subject, self._report = queue, subject, report

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        except DeviceLost as loss:
            self._queue.lost = True
            raise self._queue.loss(self._subject) from loss.__cause__
        # A loss shows in many ways; mapping fails without any message.
        except DeviceError as failure:
            if isinstance(failure, OutOfMemory) or not self._queue.find_loss():
                raise
            self._queue.guard(self._subject)
