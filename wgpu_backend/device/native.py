# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportPrivateUsage=false
# ruff: noqa: ANN401
"""Direct calls into the C library, where wgpu-py has no wrapper or is slow.

Only this file touches wgpu-py's private handles. `load` checks that every piece is there and gives
None when one is not; the plain path through wgpu-py's public methods then serves, and is tested
as much. Here are: recording and submitting a Program (0.9 µs a dispatch instead of 3 µs), shader
modules without run-time checks, reading a mapped buffer without a second thread, and waiting for
one submission instead of for all.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, Protocol

import wgpu

from wgpu_backend.device.faults import is_gpu_error, is_loss
from wgpu_backend.graph.capabilities import MatrixUnit

_FUNCTIONS = (
    "wgpuCommandEncoderBeginComputePass",
    "wgpuCommandEncoderCopyBufferToBuffer",
    "wgpuCommandEncoderFinish",
    "wgpuCommandEncoderRelease",
    "wgpuCommandBufferRelease",
    "wgpuComputePassEncoderEnd",
    "wgpuComputePassEncoderRelease",
    "wgpuDeviceCreateCommandEncoder",
    "wgpuQueueWriteBuffer",
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuDeviceCreateShaderModuleTrusted",
    "wgpuDevicePoll",
    "wgpuDeviceDestroy",
    "wgpuQueueSubmitForIndex",
    "wgpuQueueGetTimestampPeriod",
    "wgpuBufferMapAsync",
    "wgpuBufferGetMappedRange",
    "wgpuBufferUnmap",
)
# How long wgpu-py's own thread may stay in a poll, which ends with what is submitted.
_POLL_SECONDS = 10.0
# A map that has not answered after so many waits, each of so many seconds, never will.
_MAP_WAITS = 200
_MAP_PAUSE = 0.05
# The feature of matrix units. wgpu-native 29 lists it and refuses it: it is experimental, and the C
# interface has no switch for such.
MATRICES = "cooperative-matrix"
_SUBGROUP_SIZE = re.compile(r" *@subgroup_size\(\w+\)")


def enable(text: str) -> str:
    """Return WGSL for naga: it enables matrix units on the first line if it uses them.

    naga has no attribute for the size of subgroups; matrix units are only used where all are of one
    size.
    """
    if "coop_mat" not in text:
        return text
    return f"enable wgpu_cooperative_matrix; {_SUBGROUP_SIZE.sub('', text)}"


def find_matrix_unit(gpu: Any, api: str) -> MatrixUnit | None:
    """Return the matrix unit that wgpu-native granted to a device, None without one.

    It does not list shapes: 16x16x16 is assumed, which NVIDIA and AMD have through Vulkan, and
    8x8x8 through Metal. The self-test then compares a product with NumPy.
    """
    if MATRICES not in gpu.features:
        return None
    # wgpu-py 0.32 calls a subgroup's size ``stackgroup_min_size``.
    ends = ("group_min_size", "group_max_size")
    sizes = {int(size) for name, size in gpu.adapter.info.items() if name.endswith(ends)}
    if len(sizes) != 1:
        return None
    side = 8 if api == "Metal" else 16
    return MatrixUnit(side, side, side, sizes.pop(), "naga")


# By the names that wgpu-py gives to types of errors.
_ERRORS: dict[str, type[Exception]] = {
    "OutOfMemory": wgpu.GPUOutOfMemoryError,
    "Validation": wgpu.GPUValidationError,
    "Internal": wgpu.GPUInternalError,
}


class _Slot:
    """A place where wgpu-py leaves an error, as its ``ErrorSlot``."""

    name = ""
    type: str = ""
    message: str | None = None


def check_calls(api: Any) -> Any:
    """Return the functions of the C library that raise their errors.

    wgpu-py's own ones make six Python calls for each, these make one. They are the same functions
    to the library: while one runs, its thread's stack of places for errors has one more.
    """
    handler = getattr(api.libf, "_error_handler", None)
    own = getattr(handler, "_per_thread_data", None)
    make_stack = getattr(handler, "_get_proxy_stack", None)
    if own is None or make_stack is None:
        return api.libf

    def check(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                stack = own.stack
            except AttributeError:
                stack = make_stack()
            slot = _Slot()
            stack.append(slot)
            try:
                result = function(*args)
            finally:
                stack.pop()
            if slot.message is not None:
                raise _ERRORS.get(slot.type, wgpu.GPUError)(slot.message)
            return result

        return call

    return SimpleNamespace(**{name: check(getattr(api.lib, name)) for name in _FUNCTIONS})


class Native:
    """The C library of wgpu-py, checked for the functions used here.

    Attributes
    ----------
    errors_are_shared : bool
        Whether an error of one thread may be raised in another.
    seals : bool
        Whether commands may be finished before they are submitted.
    """

    errors_are_shared = False
    seals = True

    def __init__(self, api: Any) -> None:
        self._api = api
        # Errors of these functions are logged, not raised: for calls whose errors show later.
        self.lib = api.lib
        # Errors of these are raised.
        self.safe = api.libf
        self.ffi = api.ffi
        # Descriptors that say nothing, made once: a step uses one of each.
        self._encoder = self.ffi.new("WGPUCommandEncoderDescriptor *")
        self._pass = self.ffi.new("WGPUComputePassDescriptor *")
        self._commands = self.ffi.new("WGPUCommandBufferDescriptor *")
        # Types by name are looked up at each use.
        self._one_buffer = self.ffi.typeof("WGPUCommandBuffer[1]")

    @cached_property
    def _one_index(self) -> Any:
        """Return the type of a submission's index, which Dawn's library lacks."""
        return self.ffi.typeof("WGPUSubmissionIndex *")

    def module(self, gpu: Any, label: str, code: str) -> Any:
        """Make a shader module with run-time checks."""
        return gpu.create_shader_module(label=label, code=enable(code))

    def pipeline(self, gpu: Any, label: str, layout: Any, module: Any, entry: str) -> Any:
        """Compile a pipeline."""
        stage = {"module": module, "entry_point": entry}
        return gpu.create_compute_pipeline(label=label, layout=layout, compute=stage)

    def trusted_module(self, gpu: Any, label: str, code: str) -> Any:
        """Make a shader module without bounds clamping and loop counters.

        Raises
        ------
        wgpu.GPUValidationError
            The code does not compile.
        """
        api, ffi = self._api, self.ffi
        source = ffi.new("WGPUShaderSourceWGSL *")
        wgsl = enable(code).encode()
        encoded = ffi.new("char[]", wgsl)
        source.chain.sType = self.lib.WGPUSType_ShaderSourceWGSL
        source.code.data, source.code.length = encoded, len(wgsl)
        name = ffi.new("char[]", label.encode())
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        descriptor.label.data, descriptor.label.length = name, len(label.encode())
        handle = self.safe.wgpuDeviceCreateShaderModuleTrusted(gpu._internal, descriptor, 0)
        return api.GPUShaderModule(label, handle, gpu)

    def command(self, pipeline: Any, group: Any, counts: tuple[int, int, int]) -> tuple[Any, ...]:
        """Return a dispatch in the form that `record` loops over."""
        return (pipeline._internal, group._internal, *counts)

    def copying(self, source: Any, offset: int, target: Any, at: int, size: int) -> tuple[Any, ...]:
        """Return a copy between buffers in the form that `record` loops over."""
        return (source._internal, offset, target._internal, at, size)

    def record(
        self, gpu: Any, *passes: tuple[Sequence[tuple[Any, ...]], Sequence[tuple[Any, ...]]]
    ) -> Any:
        """Return an encoder of passes of dispatches, each followed by copies, for `send` or `drop`.

        Errors of all calls are raised when the encoder is finished.
        """
        encoder = self.lib.wgpuDeviceCreateCommandEncoder(gpu._internal, self._encoder)
        for commands, copies in passes:
            if commands:
                self.encode(encoder, commands)
            for copy in copies:
                self.lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, *copy)
        return encoder

    def send(self, gpu: Any, encoder: Any) -> Any:
        """Submit recorded commands and `drop` them; return the index to wait for."""
        try:
            return self.finish(gpu, encoder)
        finally:
            self.drop(encoder)

    def drop(self, encoder: Any) -> None:
        """Release an encoder."""
        self.lib.wgpuCommandEncoderRelease(encoder)

    def encode(self, encoder: Any, commands: Sequence[tuple[Any, ...]]) -> None:
        """Record a pass of dispatches with an encoder's handle."""
        handle = self.lib.wgpuCommandEncoderBeginComputePass(encoder, self._pass)
        self._dispatch(handle, commands)
        self.lib.wgpuComputePassEncoderEnd(handle)
        self.lib.wgpuComputePassEncoderRelease(handle)

    def encode_in(self, compute_pass: Any, commands: Sequence[tuple[Any, ...]]) -> None:
        """Record dispatches in a pass that the caller begins and ends."""
        self._dispatch(compute_pass._internal, commands)

    def _dispatch(self, handle: Any, commands: Sequence[tuple[Any, ...]]) -> None:
        lib, null = self.lib, self.ffi.NULL
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_group = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        bound = None
        for pipeline, group, x, y, z in commands:
            if pipeline is not bound:
                set_pipeline(handle, pipeline)
                bound = pipeline
            set_group(handle, 0, group, 0, null)
            dispatch(handle, x, y, z)

    def submit(self, gpu: Any, encoder: Any) -> Any:
        """Finish an encoder of wgpu-py and submit it; return the index to wait for."""
        return self.finish(gpu, encoder._internal)

    def finish(self, gpu: Any, encoder: Any) -> Any:
        """Finish the encoder of a handle and submit it, like `submit`."""
        return self.send_sealed(gpu, self.safe.wgpuCommandEncoderFinish(encoder, self._commands))

    def seal(self, encoder: Any) -> Any:
        """Finish recorded commands and `drop` the encoder; `send_sealed` submits them."""
        try:
            return self.safe.wgpuCommandEncoderFinish(encoder, self._commands)
        finally:
            self.drop(encoder)

    def send_sealed(self, gpu: Any, commands: Any) -> Any:
        """Submit finished commands and release them; return the index to wait for.

        The caller has made sure that the device is not lost.
        """
        try:
            buffers = self.ffi.new(self._one_buffer, [commands])
            return self.safe.wgpuQueueSubmitForIndex(gpu.queue._internal, 1, buffers)
        finally:
            self.lib.wgpuCommandBufferRelease(commands)

    def write(self, gpu: Any, buffer: Any, offset: int, data: memoryview) -> None:
        """Copy bytes to a buffer, before the next submission."""
        # Let go of the view here: a traceback that kept it would crash Python's collector.
        with self.ffi.from_buffer(data) as start:
            write = self.safe.wgpuQueueWriteBuffer
            write(gpu.queue._internal, buffer._internal, offset, start, data.nbytes)

    def write_nothing(self, gpu: Any, buffer: Any) -> None:
        """Raise wgpu's error if the device is lost, in 1.5 µs."""
        self.safe.wgpuQueueWriteBuffer(gpu.queue._internal, buffer._internal, 0, self.ffi.NULL, 0)

    def poll(self, gpu: Any, index: Any = None) -> None:
        """Wait until the submission of that index is done, or all of them."""
        chosen = self.ffi.NULL if index is None else self.ffi.new(self._one_index, index)
        self.safe.wgpuDevicePoll(gpu._internal, True, chosen)

    def is_lost(self, gpu: Any) -> bool:
        """Return whether the device is known to be lost."""
        return is_lost(gpu)

    def mapping(
        self, gpu: Any, present: Callable[[Any], AbstractContextManager[None]]
    ) -> BufferMapping:
        """Return an object that maps one buffer after the other for the host."""
        return Mapping(self, gpu, present)

    def timestamp_period(self, gpu: Any) -> float:
        """Return the nanoseconds of one tick of a timestamp."""
        return float(self.lib.wgpuQueueGetTimestampPeriod(gpu.queue._internal))

    def destroy(self, gpu: Any) -> None:
        """Make the device lost, as a driver reset would; for tests."""
        self.lib.wgpuDeviceDestroy(gpu._internal)


# Callbacks that the library may yet call, each with the list it answers into. They may not be freed
# before, whoever forgets the buffer, nor by themselves while they run: the next Mapping clears up.
_UNANSWERED: list[tuple[list[int], object]] = []


def _keep(answers: list[int], callback: object) -> None:
    for entry in list(_UNANSWERED):
        if entry[0]:
            _UNANSWERED.remove(entry)
    _UNANSWERED.append((answers, callback))


class BufferMapping(Protocol):
    """The interface of `Mapping`, which each implementation has."""

    def start(self, buffer: Any, nbytes: int) -> None:
        """Request the first bytes, as they are after the last submission."""
        ...

    def wait(self, index: object) -> bytes:
        """Wait for the bytes and copy them out."""
        ...


class Mapping:
    """Requests to map a buffer for the host, one at a time.

    Parameters
    ----------
    present : callable
        Gives a context in which a buffer's device is not lost, see `Queue.mapped_or_lost`.
    """

    def __init__(
        self, native: Native, gpu: Any, present: Callable[[Any], AbstractContextManager[None]]
    ) -> None:
        self._native, self._gpu, self._present = native, gpu, present
        answers: list[int] = []
        self._answers = answers
        # Held until the answer comes; an event would take a lock of its own for each call.
        self._unanswered = unanswered = threading.Lock()
        # Set only while a request is in progress: otherwise it would outlive its pool.
        self._buffer: Any = None
        self._nbytes = 0
        ffi, lib = native.ffi, native.lib

        @ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)")
        def answer(status: int, _message: Any, _one: Any, _two: Any) -> None:
            answers.append(int(status))
            if unanswered.locked():
                unanswered.release()

        self._callback = answer
        self._info = ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        self._info.callback = answer

    def start(self, buffer: Any, nbytes: int) -> None:
        """Request the first bytes, as they are after the last submission."""
        self._answers.clear()
        self._unanswered.acquire(blocking=False)
        self._buffer, self._nbytes = buffer, nbytes
        _keep(self._answers, self._callback)
        request = self._native.safe.wgpuBufferMapAsync
        mode = self._native.lib.WGPUMapMode_Read
        request(buffer._internal, mode, 0, nbytes, self._info[0])

    def wait(self, index: object) -> bytes:
        """Wait for the submission of that index and copy the bytes out.

        Raises
        ------
        RuntimeError
            The buffer could not be mapped, as after device loss.
        """
        for _ in range(_MAP_WAITS):
            if self._answers:
                break
            self._native.poll(self._gpu, index)
            # Another thread's poll may have taken the answer and not yet delivered it.
            if not self._answers and self._unanswered.acquire(timeout=_MAP_PAUSE):
                break
        lib, ffi = self._native.lib, self._native.ffi
        buffer, self._buffer = self._buffer, None
        if self._answers != [lib.WGPUMapAsyncStatus_Success]:
            raise RuntimeError(f"mapping the buffer failed, status {self._answers}")
        with self._present(buffer):
            raw = buffer._internal
            pointer = lib.wgpuBufferGetMappedRange(raw, 0, self._nbytes)
            data = bytes(ffi.buffer(pointer, self._nbytes))
            lib.wgpuBufferUnmap(raw)
            return data


def release_all(objects: Iterable[Any]) -> None:
    """Release wgpu objects now, even if they are still referred to."""
    for thing in objects:
        thing._release()


def is_lost(gpu: Any) -> bool:
    """Return whether a device is lost, by a call that raises an error if so."""
    try:
        release_all([gpu.create_pipeline_layout(bind_group_layouts=[])])
    except Exception as error:
        if not is_gpu_error(error):
            raise
        return is_loss(error)
    return False


def stop_polling(gpu: Any) -> bool:
    """Stop the thread in which wgpu-py polls a device; return whether it has ended.

    wgpu-py does not wait for it while the interpreter ends, and a device that is released under a
    poll aborts the process.
    """
    poller = getattr(gpu, "_poller", None)
    if poller is None:
        return True
    poller.stop()
    if poller is not threading.current_thread():
        poller.join(_POLL_SECONDS)
    return not poller.is_alive()


@cache
def leave_to_parents() -> None:
    """Let forked children exit without releasing what they inherit.

    What they inherit is their parent's. To release it they, and the driver when it is unloaded,
    would wait for threads that they have not.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_release_nothing)


def _release_nothing() -> None:
    def forget(self: object) -> None: ...

    wgpu.GPUObjectBase.__del__ = forget
    if (dawn := sys.modules.get("wgpudawn")) is not None:
        dawn.GPUObjectBase.__del__ = forget
    program = ctypes.CDLL(None)
    # glibc calls the last registered function first, so `_exit` ends the child before the driver's
    # handlers.
    if hasattr(program, "on_exit"):
        program.on_exit(program._exit, None)


def wait_for_all(gpu: Any) -> None:
    """Wait until everything submitted is done; the public call of wgpu-py 0.32 raises TypeError."""
    gpu._poll_wait()


def load() -> Native | None:
    """Return the fast path if this wgpu-py has all of it, else None."""
    api = getattr(getattr(wgpu, "backends", None), "wgpu_native", None)
    api = getattr(api, "_api", None)
    if api is None or not all(hasattr(api, n) for n in ("lib", "libf", "ffi", "GPUShaderModule")):
        return None
    if not all(hasattr(api.lib, name) for name in _FUNCTIONS):
        return None
    found = Native(api)
    found.safe = check_calls(api)
    return found
