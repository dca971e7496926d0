# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportMissingImports=false
# ruff: noqa: ANN401
"""Dawn, Google's WebGPU, through the package ``wgpudawn``: wgpu-py's API over another library.

It differs from wgpu-native in these points, which are handled here:

- experimental features, matrix units among them, need toggles before the first adapter is made;
- it serves several threads only if the feature ``implicit-device-synchronization`` is on;
- waiting is done with futures, not by polling a device;
- a lost device is reported by a callback, and later calls do nothing instead of failing;
- errors of all threads arrive in one list, so shader modules are made one at a time;
- Tint wants ``enable subgroups;``, which naga refuses.

Run-time checks are off for the whole device (``disable_robustness``), as Dawn has no switch for
each module: a kernel from outside that leaves its buffers is not caught. Write kernels with
wgpu-native.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

from wgpu_backend.device.faults import divert_logs
from wgpu_backend.device.native import BufferMapping, Native
from wgpu_backend.device.wgsl.loop_counters import COUNTS
from wgpu_backend.files.native_messages import discard_messages
from wgpu_backend.graph.capabilities import MatrixUnit

NAME = "dawn"
# Matrix units and f16 on NVIDIA are behind the first two. The others switch off checks, which
# wgpu-native has off for modules of this package, too, and the rounding of time stamps to 0.1 ms.
_ENABLED = (
    "allow_unsafe_apis",
    "vulkan_enable_f16_on_nvidia",
    "disable_robustness",
)
_DISABLED = ("timestamp_quantization",)
_FEATURES = (
    "implicit-device-synchronization",
    "shader-f16",
    "subgroups",
    "subgroup-size-control",
    "chromium-experimental-subgroup-matrix",
    "timestamp-query",
)
_MATRIX_FEATURES = ("chromium-experimental-subgroup-matrix", "subgroup-size-control", "shader-f16")
# Names of features that wgpu-native spells in another way.
_SPELLED = {"subgroups": "subgroup"}
_SUBGROUP = re.compile(r"\bsubgroup[A-Z]\w*|\bsubgroup_(?:size|invocation_id)\b")
_MATRICES = (
    "enable f16; enable subgroups; enable subgroup_size_control; "
    "enable chromium_experimental_subgroup_matrix; "
    "diagnostic(off, chromium.subgroup_matrix_uniformity);"
)
# Dawn prints this at each look at adapters; it concerns dynamic offsets, which are not used here.
_CHATTER = re.compile(rb"Warning: maxDynamic\w+ artificially reduced [^\n]*\n")
_WAIT_NANOSECONDS = 100_000_000


def is_installed() -> bool:
    """Return whether the package is installed."""
    return find_spec("wgpudawn") is not None


@cache
def _load() -> Any:
    """Import the package, and set the toggles before its first adapter."""
    import wgpudawn
    from wgpudawn.backends.dawn import extras

    divert_logs()
    known = extras.all_toggles()
    try:
        extras.set_instance_extras(
            enable_toggles=[name for name in _ENABLED if name in known],
            disable_toggles=[name for name in _DISABLED if name in known],
        )
    # The program uses Dawn itself: its adapters come without these toggles.
    except RuntimeError:
        return wgpudawn
    return wgpudawn


def adapters() -> list[Any]:
    """Return Dawn's adapters."""
    module = _load()
    with discard_messages(_CHATTER):
        return list(module.gpu.enumerate_adapters_sync())


def features(adapter: Any) -> list[str]:
    """Return an adapter's features by wgpu-native's names."""
    return sorted(_SPELLED.get(name, name) for name in map(str, adapter.features))


def request_device(adapter: Any, limits: dict[str, int], *, full: bool) -> Any:
    """Open an adapter, with all features that kernels use or only with thread safety."""
    wanted = _FEATURES if full else _FEATURES[:1]
    return adapter.request_device_sync(
        required_features=[name for name in wanted if name in adapter.features],
        required_limits={name: value for name, value in limits.items() if name in adapter.limits},
    )


def enable(text: str) -> str:
    """Add `enable` for the used features to the first line, so that line numbers stay.

    Kernels with matrix units load at places that depend on the subgroup's number, which Tint cannot
    prove to be the same for all of its threads.
    """
    if "subgroup_matrix" in text:
        return _MATRICES + text.removeprefix("enable f16;")
    if COUNTS in text:
        # A loop with a counter may end for one thread alone, and barriers in it do not agree.
        text = f"enable chromium_disable_uniformity_analysis; {text}"
    return f"enable subgroups; {text}" if _SUBGROUP.search(text) else text


class DawnCalls(Native):
    """Direct calls into Dawn's C library."""

    errors_are_shared = True
    seals = False

    def __init__(self, api: Any, ffi: Any) -> None:
        super().__init__(api)
        self._callbacks = ffi.callbacks
        self._c_callback: Callable[[str], Any] = ffi.c_callback
        self._instance = api.get_wgpu_instance
        self._process_events: Callable[[], None] = api.process_events

    def module(self, gpu: Any, label: str, code: str) -> Any:
        """Make a shader module; run-time checks are off for the whole device.

        Hold the queue's lock: the package raises an error in whichever thread looks first.
        """
        return gpu.create_shader_module(label=label, code=enable(code))

    def trusted_module(self, gpu: Any, label: str, code: str) -> Any:
        """Make a shader module, as `module`."""
        return self.module(gpu, label, code)

    def pipeline(self, gpu: Any, label: str, layout: Any, module: Any, entry: str) -> Any:
        """Compile a pipeline on a thread of Dawn's, which reports errors to this call alone."""
        if self.is_lost(gpu):
            raise RuntimeError("the device was lost")
        stage = {"module": module, "entry_point": entry}
        promise = gpu.create_compute_pipeline_async(label=label, layout=layout, compute=stage)
        return promise.sync_wait()

    def finish(self, gpu: Any, encoder: Any) -> Any:
        """Finish the encoder of a handle and submit it.

        Returns
        -------
        None
            A wait makes a future when it begins, as most submissions are waited for by a map.
        """
        if self.is_lost(gpu):
            raise RuntimeError("the device was lost")
        commands = self.safe.wgpuCommandEncoderFinish(encoder, self._commands)
        try:
            buffers = self.ffi.new("WGPUCommandBuffer[]", [commands])
            self.safe.wgpuQueueSubmit(gpu.queue._internal, 1, buffers)
        finally:
            self.lib.wgpuCommandBufferRelease(commands)

    def write_nothing(self, gpu: Any, buffer: Any) -> None:
        """Do nothing: for a lost device Dawn returns no address, where wgpu-native aborts."""

    def write(self, gpu: Any, buffer: Any, offset: int, data: memoryview) -> None:
        """Copy bytes to a buffer, before the next submission."""
        if gpu._lost_promise._state != "pending":
            raise RuntimeError("the device was lost")
        super().write(gpu, buffer, offset, data)

    def poll(self, gpu: Any, index: Any = None) -> None:
        """Wait until everything submitted is done."""
        info = self.ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        info.mode = self.lib.WGPUCallbackMode_WaitAnyOnly
        info.callback = self._c_callback("WGPUQueueWorkDoneCallback")
        info.userdata1 = self._callbacks.register(_ignore)
        self.wait_for(self.safe.wgpuQueueOnSubmittedWorkDone(gpu.queue._internal, info[0]))
        if self.is_lost(gpu):
            raise RuntimeError("the device was lost")

    def wait_for(self, future: Any) -> None:
        """Wait until a future is done; its callback has been called by then."""
        info = self.ffi.new("WGPUFutureWaitInfo *")
        info.future.id = future.id
        while not info.completed:
            status = self.safe.wgpuInstanceWaitAny(self._instance(), 1, info, _WAIT_NANOSECONDS)
            if status not in (self.lib.WGPUWaitStatus_Success, self.lib.WGPUWaitStatus_TimedOut):
                raise RuntimeError(f"waiting for the device failed, status {status}")

    def timestamp_period(self, gpu: Any) -> float:
        """Return 1: Dawn converts time stamps to nanoseconds itself."""
        return 1.0

    def is_lost(self, gpu: Any) -> bool:
        """Return whether the device's loss was reported."""
        self._process_events()
        return gpu._lost_promise._state != "pending"

    def mapping(
        self, gpu: Any, present: Callable[[Any], AbstractContextManager[None]]
    ) -> BufferMapping:
        """Return an object that maps one buffer after the other for the host."""
        return DawnMapping(self)


def _ignore(*_: object) -> None:
    """Ignore the status of finished work: a separate callback reports a loss."""


class DawnMapping:
    """Requests to map a buffer for the host, one at a time."""

    def __init__(self, native: DawnCalls) -> None:
        self._native = native
        self._statuses: list[int] = []
        self._buffer: Any = None
        self._future: Any = None
        self._nbytes = 0
        self._info = native.ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = native.lib.WGPUCallbackMode_WaitAnyOnly
        self._info.callback = native._c_callback("WGPUBufferMapCallback")

    def start(self, buffer: Any, nbytes: int) -> None:
        """Request the first bytes, as they are after the last submission."""
        native = self._native
        # A list of this request alone: an older one's callback may still come.
        statuses: list[int] = []
        self._statuses, self._buffer, self._nbytes = statuses, buffer, nbytes

        def answer(status: int, *_: object) -> None:
            statuses.append(int(status))

        self._info.userdata1 = native._callbacks.register(answer)
        mode = native.lib.WGPUMapMode_Read
        self._future = native.safe.wgpuBufferMapAsync(
            buffer._internal, mode, 0, nbytes, self._info[0]
        )

    def wait(self, index: object) -> bytes:
        """Wait for the bytes and copy them out.

        Raises
        ------
        RuntimeError
            The buffer could not be mapped, as after device loss.
        """
        native = self._native
        buffer, self._buffer = self._buffer, None
        native.wait_for(self._future)
        if self._statuses != [native.lib.WGPUMapAsyncStatus_Success]:
            raise RuntimeError(f"mapping the buffer failed, status {self._statuses}")
        raw = buffer._internal
        pointer = native.lib.wgpuBufferGetConstMappedRange(raw, 0, self._nbytes)
        if not pointer:
            raise RuntimeError("the buffer was unmapped before it was read")
        data = bytes(native.ffi.buffer(pointer, self._nbytes))
        native.lib.wgpuBufferUnmap(raw)
        return data


def local_memory(adapter: Any) -> int | None:
    """Return the bytes of memory that only the device reads fast; None where Dawn does not say."""
    if "adapter-properties-memory-heaps" not in adapter.features:
        return None
    from wgpudawn.backends.dawn import extras

    return pick_local_heap(extras.get_adapter_properties(adapter).get("memory_heaps", ()))


def pick_local_heap(heaps: Sequence[dict[str, Any]]) -> int | None:
    """Return the bytes of the largest heap of a device's own memory; None without one.

    A card may list a part of its memory once more, as the part that the host can address.
    """
    sizes = [heap["size"] for heap in heaps if "device-local" in heap["properties"]]
    return max(sizes, default=None)


def find_matrix_unit(adapter: Any) -> MatrixUnit | None:
    """Return the largest shape of f16 matrices, with sums in f32, that an adapter multiplies."""
    if not set(_MATRIX_FEATURES) <= set(adapter.features):
        return None
    from wgpudawn.backends.dawn import extras

    properties: dict[str, Any] = extras.get_adapter_properties(adapter)
    return pick_matrix_unit(properties.get("subgroup_matrix_configs", ()))


def pick_matrix_unit(configs: Sequence[dict[str, Any]]) -> MatrixUnit | None:
    """Return the largest unit that kernels can use, from the shapes that an adapter lists."""
    units = [
        MatrixUnit(c["m"], c["n"], c["k"], c["min_subgroup_size"])
        for c in configs
        if (c["component_type"], c["result_component_type"]) == ("f16", "f32")
        # Kernels load 32 values of k at a time.
        and 32 % c["k"] == 0
        # They load vectors of four.
        and c["k"] % 4 == 0
    ]
    return max(units, key=lambda unit: unit.m * unit.n * unit.k, default=None)


@cache
def load() -> DawnCalls | None:
    """Return the direct calls if this wgpudawn has all of them, else None."""
    _load()
    from wgpudawn.backends.dawn import _api, _ffi

    parts = ("lib", "libf", "ffi", "get_wgpu_instance", "process_events")
    if not all(hasattr(_api, name) for name in parts) or not hasattr(_ffi, "callbacks"):
        return None
    return DawnCalls(_api, _ffi)
