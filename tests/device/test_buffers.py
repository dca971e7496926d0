from __future__ import annotations

import pytest

from tests.device.kernels import double, floats, numbers, shader
from wgpu_backend.device.buffers import POOL_NBYTES, Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.memory import Ledger, format_bytes
from wgpu_backend.errors import DeviceError, OutOfMemory
from wgpu_backend.graph.capabilities import DeviceInfo


def test_byte_counts_are_written_for_people():
    assert [format_bytes(n) for n in (1, 1 << 10, 3 << 19, 2 << 30)] == [
        "1 B",
        "1 KiB",
        "1.5 MiB",
        "2 GiB",
    ]


def test_a_ledger_counts_by_purpose_and_keeps_the_peak():
    ledger = Ledger()
    ledger.add("weights", 100)
    ledger.add("cache", 30)
    ledger.remove("weights", 100)
    ledger.add("weights", 50)
    report = ledger.report(7)
    weights, cache = report.uses
    assert (
        weights.purpose, weights.nbytes, weights.count, weights.peak_nbytes,
    ) == ("weights", 50, 1, 100)  # fmt: skip
    assert cache.nbytes == 30
    assert (report.nbytes, report.count, report.peak_nbytes, report.pool_nbytes) == (80, 2, 130, 7)
    assert "weights" in str(report)
    assert "130 B" in str(report)


@pytest.mark.gpu
def test_a_released_buffer_is_reused_for_about_its_size(fresh: Device):
    first = fresh.buffer(100_000, purpose="activations")
    first.release()
    made = fresh.counters.buffers
    fresh.buffer(90_000, purpose="inputs")
    assert made == fresh.counters.buffers
    fresh.buffer(90_000, purpose="inputs")
    assert made + 1 == fresh.counters.buffers


@pytest.mark.gpu
def test_a_large_buffer_is_not_wasted_on_a_small_request(fresh: Device):
    fresh.buffer(1 << 20, purpose="activations").release()
    assert fresh.buffer(1 << 16, purpose="activations").capacity == 1 << 16


@pytest.mark.gpu
def test_releasing_twice_gives_back_once(fresh: Device):
    buffer = fresh.buffer(1000, purpose="activations")
    buffer.release()
    buffer.release()
    assert fresh.memory_report().count == 0
    one, two = (fresh.buffer(1000, purpose="activations") for _ in range(2))
    fresh.write(one, b"\x01" * 1000)
    fresh.write(two, b"\x02" * 1000)
    assert fresh.read(one) == b"\x01" * 1000


@pytest.mark.gpu
def test_the_pool_keeps_a_bounded_reserve_and_gives_it_up(fresh: Device):
    buffers = [fresh.buffer(POOL_NBYTES // 4, purpose="activations") for _ in range(6)]
    for buffer in buffers:
        buffer.release()
    assert fresh.memory_report().pool_nbytes == POOL_NBYTES
    fresh.trim()
    assert fresh.memory_report().pool_nbytes == 0


@pytest.mark.gpu
def test_weights_are_freed_at_once(fresh: Device):
    fresh.buffer(1 << 20, purpose="weights").release()
    assert fresh.memory_report().pool_nbytes == 0


@pytest.mark.gpu
def test_two_hundred_rounds_end_where_they_began(fresh: Device):
    pipeline = fresh.pipeline(shader())
    for count in range(200):
        a, b = floats(fresh, 64 + count), fresh.buffer(256, purpose="activations")
        with_result = fresh.program([double(pipeline, a, b)], reads=[Binding(b)])
        assert numbers(with_result.replay().wait()[0])[:2] == [0.0, 2.0]
        with_result.close()
        a.release()
        b.release()
    report = fresh.memory_report()
    assert (report.nbytes, report.count) == (0, 0)
    assert report.pool_nbytes < 64 << 10
    assert fresh.counters.buffers < 220  # one for each readback, few for the rest


@pytest.mark.gpu
def test_an_empty_buffer_is_refused(device: Device):
    with pytest.raises(DeviceError, match="0 bytes, a buffer holds at least 1"):
        device.buffer(0, purpose="inputs")
    with pytest.raises(DeviceError, match="-4 bytes"):
        device.buffer(-4, purpose="inputs")


@pytest.mark.gpu
def test_an_unknown_purpose_is_refused(device: Device):
    with pytest.raises(DeviceError, match="needs one of weights, cache"):
        device.buffer(4, purpose="fun")  # pyright: ignore[reportArgumentType]


@pytest.mark.gpu
def test_a_buffer_beyond_the_limit_is_refused_with_both_numbers(device: Device):
    most = device.capabilities.max_buffer_nbytes
    with pytest.raises(OutOfMemory, match=f"{most + 1} bytes.* allows .*{most} bytes") as caught:
        device.buffer(most + 1, purpose="weights", label="blk.0")
    assert "purpose" in caught.value.report


@pytest.mark.gpu
def test_more_than_the_host_has_is_refused_before_it_kills_the_process(adapter: DeviceInfo):
    if adapter.kind != "software":
        pytest.skip("a GPU refuses by itself; software allocates lazily")
    with Device.open(adapter) as opened:
        taken: list[Buffer] = []

        def take_all() -> None:
            while len(taken) < 4000:
                taken.append(opened.buffer(512 << 20, purpose="cache"))

        with pytest.raises(OutOfMemory, match="the device has") as caught:
            take_all()
        assert "cache" in caught.value.report
        assert opened.memory_report().count > 1


@pytest.mark.gpu
def test_a_released_buffer_cannot_be_used(device: Device):
    buffer = floats(device, 4)
    buffer.release()
    for act in (
        lambda: device.read(buffer),
        lambda: device.write(buffer, b"1234"),
        lambda: device.clear(buffer),
        lambda: device.program([], reads=[Binding(buffer)]),
    ):
        with pytest.raises(DeviceError, match="used after its release"):
            act()
