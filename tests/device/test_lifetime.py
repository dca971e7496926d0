"""What is opened is closed: objects and memory return to where they were."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import wgpu

from tests.device.kernels import double, floats, numbers, shader
from tests.implementations import wgpu_native_only
from tests.patience import PATIENCE
from wgpu_backend.device import native
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.device import Device
from wgpu_backend.device.queue import Queue
from wgpu_backend.device.readback import Slot
from wgpu_backend.errors import DeviceError, OutOfMemory
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

pytestmark = pytest.mark.gpu


def counts() -> dict[str, int]:
    """How many objects wgpu-native keeps, by kind."""
    native_counts = wgpu.diagnostics.wgpu_native_counts.get_dict()
    return {kind: int(entry["count"]) for kind, entry in native_counts.items()}


def use(device: Device) -> None:
    a, b = floats(device, 64), floats(device, 64)
    steps = [double(device.pipeline(shader()), a, b)]
    program = device.program(steps, reads=[Binding(b)])
    assert numbers(program.replay().wait()[0])[3] == 6.0
    program.timed()
    device.read(a)


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
def test_opening_and_closing_leaks_nothing(adapter: DeviceInfo, fast: bool):
    def round_trip() -> None:
        with Device.open(adapter, native=fast) as opened:
            use(opened)

    round_trip()
    gc.collect()
    before = counts()
    gc.disable()  # closing frees by itself, not the next collection
    try:
        for _ in range(100):
            round_trip()
        assert counts() == before
    finally:
        gc.enable()


def test_a_dropped_device_and_a_dropped_executor_name_the_device(adapter: DeviceInfo):
    def drop() -> None:
        Device.open(adapter)
        WgpuExecutor(Device.open(adapter))

    with pytest.warns(ResourceWarning):
        drop()
    gc.collect()
    before = counts()
    gc.disable()
    try:
        with pytest.warns(ResourceWarning) as caught:
            drop()
        assert counts() == before
    finally:
        gc.enable()
    said = [str(warning.message) for warning in caught]
    assert [message.partition("(")[0] for message in said] == [
        "unclosed Device",
        "unclosed executor on Device",
    ]
    assert all(adapter.id in message for message in said)


def test_closing_frees_what_somebody_still_holds(adapter: DeviceInfo):
    gc.collect()
    before = counts()
    opened = Device.open(adapter)
    pipeline = opened.pipeline(shader())
    a, b = floats(opened, 64), floats(opened, 64)
    program = opened.program([double(pipeline, a, b)], reads=[Binding(b)])
    pending = program.replay()
    opened.close()
    after = counts()
    assert {kind: after[kind] for kind in ("Buffer", "BindGroup", "ComputePipeline", "Queue")} == {
        kind: before[kind] for kind in ("Buffer", "BindGroup", "ComputePipeline", "Queue")
    }
    del pending


@pytest.mark.parametrize("fast", [True, False])
def test_closing_waits_for_who_reads(
    adapter: DeviceInfo, fast: bool, monkeypatch: pytest.MonkeyPatch
):
    opened = Device.open(adapter, native=fast)
    a, b = floats(opened, 64), floats(opened, 64)
    program = opened.program([double(opened.pipeline(shader()), a, b)], reads=[Binding(b)])
    finish, reading, go_on = Slot.finish, threading.Event(), threading.Event()
    found: list[float] = []

    def slow(*args: Any) -> bytes:
        reading.set()
        assert go_on.wait(PATIENCE)
        return finish(*args)

    monkeypatch.setattr(Slot, "finish", slow)
    pending = program.replay()
    reader = threading.Thread(target=lambda: found.extend(numbers(pending.wait()[0])))
    reader.start()
    assert reading.wait(PATIENCE)
    closer = threading.Thread(target=opened.close)
    closer.start()
    while not program._closed:
        closer.join(0.01)
    assert closer.is_alive()
    with pytest.raises(DeviceError, match="closed"):
        program.replay()
    go_on.set()
    closer.join(PATIENCE)
    reader.join(PATIENCE)
    assert found[3] == 6.0
    assert opened.closed


@contextmanager
def queue_in_other_hands(device: Device) -> Iterator[None]:
    """A device's queue held by another thread."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with device._queue.enter("test"):
            held.set()
            assert go_on.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)
    yield
    go_on.set()
    holder.join(PATIENCE)


@wgpu_native_only
def test_a_finaliser_waits_for_nobody(fresh: Device):
    a, b = floats(fresh, 64), floats(fresh, 64)
    program = fresh.program([double(fresh.pipeline(shader()), a, b)], reads=[Binding(b)])
    program.replay().wait()
    gc.collect()
    before = counts()["BindGroup"]
    with queue_in_other_hands(fresh):
        del program  # would never end if it waited for the queue
        assert counts()["BindGroup"] == before
    assert counts()["BindGroup"] == before - 1


def test_a_buffer_dropped_while_others_are_at_the_queue_waits_for_nobody(fresh: Device):
    buffers = [fresh.buffer(1 << 20, purpose="cache")]
    with queue_in_other_hands(fresh):
        buffers.clear()  # would never end if it waited for the queue
        assert fresh._pool._ledger.nbytes == 1 << 20
    assert fresh.memory_report().nbytes == 0


def test_a_buffer_dropped_in_the_midst_of_work_goes_when_that_is_done(fresh: Device):
    buffers = [fresh.buffer(1 << 20, purpose="cache")]
    with fresh._queue.enter("test"):
        buffers.clear()
        assert fresh._pool._ledger.nbytes == 1 << 20  # whoever holds the queue counts on it
    assert fresh.memory_report().nbytes == 0


def test_a_program_leaks_nothing(fresh: Device):
    use(fresh)
    gc.collect()
    before = counts()
    for _ in range(20):
        a, b = floats(fresh, 64), floats(fresh, 64)
        steps = [double(fresh.pipeline(shader()), a, b)]
        with_reads = fresh.program(steps, reads=[Binding(b)])
        with_reads.replay().wait()
        with_reads.close()
        a.release()
        b.release()
    fresh.trim()
    after = counts()
    assert after["BindGroup"] == before["BindGroup"]
    assert after["Buffer"] <= before["Buffer"]


class Reporting:
    """A C library one of whose functions reports an error, and another calls the first."""

    def __init__(self, handler):
        self.handler, self.calls = handler, []
        for name in native._FUNCTIONS:
            setattr(self, name, lambda *args: self.calls.append(args))
        self.wgpuBufferUnmap = self.fail
        self.wgpuDevicePoll = self.nest

    def fail(self, kind, message):
        self.handler.handle_error(kind, message)

    def nest(self, call):
        with pytest.raises(wgpu.GPUValidationError, match="inner"):
            call("Validation", "inner")
        return 3


@wgpu_native_only
def test_errors_of_the_library_are_raised_as_wgpu_py_raises_them():
    from wgpu.backends.wgpu_native import _helpers

    handler = _helpers.ErrorHandler(logging.getLogger("test"))
    lib = Reporting(handler)
    api = SimpleNamespace(lib=lib, libf=_helpers.SafeLibCalls(lib, handler))
    made = native.check_calls(api)
    assert made is not api.libf
    for kind in ("", "OutOfMemory", "Validation", "Internal", "of another version"):
        with pytest.raises(wgpu.GPUError) as ours:
            made.wgpuBufferUnmap(kind, f"about {kind}")
        with pytest.raises(wgpu.GPUError) as theirs:
            api.libf.wgpuBufferUnmap(kind, f"about {kind}")
        assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))
    # wgpu-py fails to make its own class for this one.
    with pytest.raises(wgpu.GPUError, match="a pipeline"):
        made.wgpuBufferUnmap("Pipeline", "a pipeline")
    # An error goes to the call that is innermost, and none is left for the next.
    assert made.wgpuDevicePoll(made.wgpuBufferUnmap) == 3
    assert not handler._per_thread_data.stack
    made.wgpuBufferMapAsync(1, 2)
    assert lib.calls == [(1, 2)]
    without = SimpleNamespace(lib=lib, libf=SimpleNamespace())
    assert native.check_calls(without) is without.libf


@wgpu_native_only
def test_without_the_fast_path_the_plain_one_serves(
    adapter: DeviceInfo, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(native, "_FUNCTIONS", ("wgpuThatIsNotThere",))
        assert native.load() is None
        with Device.open(adapter) as opened:
            assert not opened.native
            use(opened)
    assert native.load() is not None


def test_memory_that_the_driver_refuses_is_our_exception(
    fresh: Device, monkeypatch: pytest.MonkeyPatch
):
    kept = fresh.buffer(1000, purpose="cache")

    def refuse(*_: object, **__: object) -> None:
        raise wgpu.GPUOutOfMemoryError("Not enough memory left.")

    monkeypatch.setattr(wgpu.GPUDevice, "create_buffer", refuse)
    monkeypatch.setattr(type(gpu_of(fresh)), "create_buffer", refuse)
    with pytest.raises(OutOfMemory, match=r"buffer blk\.0: the device is out of memory") as caught:
        fresh.buffer(1 << 20, purpose="weights", label="blk.0")
    assert "cache" in caught.value.report
    assert fresh.memory_report().count == 1
    assert kept.alive


def test_short_of_memory_the_pool_gives_up_its_reserve(
    fresh: Device, monkeypatch: pytest.MonkeyPatch
):
    fresh.buffer(1 << 20, purpose="activations").release()
    create = type(gpu_of(fresh)).create_buffer

    def refuse_beside_a_reserve(self: object, **options: object) -> object:
        if fresh.memory_report().pool_nbytes:
            raise wgpu.GPUOutOfMemoryError("Not enough memory left.")
        return create(self, **options)

    monkeypatch.setattr(type(gpu_of(fresh)), "create_buffer", refuse_beside_a_reserve)
    assert fresh.buffer(8 << 20, purpose="weights").alive


def gpu_of(device: Device) -> wgpu.GPUDevice:
    queue: Queue = device._queue
    return queue.gpu


@wgpu_native_only
def test_a_driver_that_refuses_to_open_is_our_exception(
    adapter: DeviceInfo, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Request device failed (3): no")

    monkeypatch.setattr(wgpu.GPUAdapter, "request_device_sync", refuse)
    with pytest.raises(DeviceError, match=f"device {adapter.id}: .*no"):
        Device.open(adapter)


def test_asking_whether_the_device_is_lost_leaves_nothing(fresh: Device):
    queue: Queue = fresh._queue
    before = counts()
    assert not queue.find_loss()
    fresh.wait()
    assert counts() == before
