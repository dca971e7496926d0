"""Several replays in one submit: the same results, fewer submits, and what each was given."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import wgpu

from tests.device.kernels import double, floats, numbers, shader
from wgpu_backend.device import program as program_module
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.device import Device
from wgpu_backend.device.native import Native
from wgpu_backend.device.program import READBACK_SLOTS, Program
from wgpu_backend.device.queue import Sealed
from wgpu_backend.errors import DeviceError, DeviceLost
from wgpu_backend.graph.capabilities import DeviceInfo

pytestmark = pytest.mark.gpu

TIMES = 3
Given = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def counting(device: Device, times: int = TIMES) -> tuple[Program, Given]:
    """b = 2 a where the first two of four floats of `a` are given; they are in the array's rows."""
    a, b = floats(device, 4), floats(device, 4)
    data = np.zeros((times, 2), np.float32)
    program = device.program(
        [double(device.pipeline(shader()), a, b)],
        reads=[Binding(b, 0, 4), Binding(b, 4, 12)],
        given=(Binding(a, 0, 8), memoryview(data.reshape(-1).view(np.uint8))),
        label="counting",
        times=times,
    )
    return program, data


def check(program: Program, data: Given, count: int, start: float) -> None:
    """Replay so many times with numbers from `start` on."""
    expected = np.arange(start, start + 2 * count, dtype=np.float32).reshape(count, 2)
    data[:count] = expected
    pending = program.replays(count)
    data[:] = -1
    read = [each.wait() for each in reversed(pending)][::-1]
    assert [[len(part) for part in each] for each in read] == [[4, 12]] * count
    assert [numbers(b"".join(each)) for each in read] == [[2 * x, 2 * y, 4, 6] for x, y in expected]


def test_each_replay_has_what_it_was_given(either: Device):
    program, data = counting(either)
    for number, count in enumerate([1, 3, 3, 3, 2, 1, 1, 1, 3, 2, 2, 2]):
        before = either.counters.submits
        check(program, data, count, 10.0 * number)
        assert either.counters.submits == before + 1


def test_replays_make_nothing(either: Device):
    program, data = counting(either)
    for count in (1, 3, 3):
        check(program, data, count, 0.0)
    made = either.counters
    before = (made.buffers, made.pipelines, made.bind_groups, made.dispatches)
    for count in (1, 2, 3, 3, 1):
        check(program, data, count, 5.0)
    assert (*before[:3], before[3] + 10) == (
        made.buffers,
        made.pipelines,
        made.bind_groups,
        made.dispatches,
    )


def test_who_waits_records_as_many_again(either: Device):
    program, data = counting(either)
    prepared: list[int] = []
    for count in (2, 2, 3, 1, 3):
        check(program, data, count, 1.0)
        prepared.append(program._ahead[2] if program._ahead else 0)
    assert prepared == [0, 2, 3, 1, 3]


@pytest.mark.parametrize(("bound", "submits"), [
    ("MAX_DISPATCHES_PER_SUBMIT", (1, 2, 4)),
    ("MAX_WORK_PER_SUBMIT", (1, 2, 2)),
])  # fmt: skip
def test_what_is_too_much_for_one_submit_takes_several(
    either: Device, bound: str, submits: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(program_module, bound, 2)
    a, b, c = (floats(either, 4) for _ in range(3))
    pipeline = either.pipeline(shader())
    data = np.zeros((TIMES, 2), np.float32)
    for steps, wanted in enumerate(submits, 1):
        chain = [double(pipeline, *pair) for pair in ((a, b), (b, c), (c, b))[:steps]]
        chain[0] = replace(chain[0], work=2 if steps > 1 else 0)
        last = chain[-1].bindings[1]
        given = Binding(a, 0, 8), memoryview(data.reshape(-1).view(np.uint8))
        program = either.program(chain, reads=[last], given=given, times=TIMES)
        for start in (1.0, 7.0, 9.0):
            data[:2] = [[start, 0], [start + 1, 0]]
            before = either.counters.submits
            pending = program.replays(2)
            assert either.counters.submits == before + wanted
            firsts = [numbers(each.wait()[0])[0] for each in pending]
            assert firsts == [start * 2.0**steps, (start + 1) * 2.0**steps]


def test_more_replays_under_way_than_there_are_slots(either: Device):
    program, data = counting(either)
    under_way = []
    for start in range(READBACK_SLOTS + 3):
        data[:] = np.arange(start, start + 6).reshape(3, 2)
        under_way.append((start, program.replays(3)))
    for start, pending in reversed(under_way):
        firsts = [numbers(each.wait()[0])[0] for each in pending]
        assert firsts == [2.0 * (start + 2 * turn) for turn in range(3)]


def test_results_that_some_still_wait_for_keep_their_slot(either: Device):
    program, data = counting(either)
    data[:] = np.arange(6).reshape(3, 2)
    last = program.replays(3)[-1]
    gc.collect()
    for start in range(2 * READBACK_SLOTS):
        check(program, data, 2, float(start))
    assert numbers(last.wait()[0]) == [8.0]
    assert last.wait() is last.wait()


def test_without_anything_given_or_read(either: Device):
    a, b = floats(either, 4), floats(either, 4)
    steps = [double(either.pipeline(shader()), a, b), double(either.pipeline(shader()), b, a)]
    assert [p.wait() for p in either.program(steps, times=2).replays(2)] == [[], []]
    assert numbers(either.read(a)) == [0, 16, 32, 48]
    program = either.program(steps, reads=[Binding(a, 4, 4)], times=2)
    assert [numbers(p.wait()[0])[0] for p in program.replays(2)] == [64.0, 256.0]


@pytest.mark.parametrize("count", [0, -1, TIMES + 1])
def test_more_than_there_is_room_for_is_refused(device: Device, count: int):
    program, _ = counting(device)
    with pytest.raises(DeviceError, match=f"counting: {count} replays at once, needs 1 to 3"):
        program.replays(count)


def test_what_is_given_has_to_be_enough_for_all(device: Device):
    a = floats(device, 4)
    with pytest.raises(DeviceError, match="given 8 bytes for 2 times 8"):
        device.program([], given=(Binding(a, 0, 8), memoryview(bytes(8))), times=2)


def test_sealed_commands_are_those_of_the_next_replay(either: Device):
    program, data = counting(either)
    assert not program.seal()
    for _ in range(2):
        check(program, data, 1, 0.0)
    assert program.prepared
    native = program._queue.native
    for start in range(4):
        assert program.seal() == program.seal() == program.prepared
        sealed = program._ahead is not None and isinstance(program._ahead[0], Sealed)
        assert sealed == (native is not None and native.seals)
        before = either.counters.submits
        check(program, data, 1, float(start))
        assert either.counters.submits == before + 1
    assert program.seal()
    # Another number of replays needs other commands.
    check(program, data, 2, 5.0)
    assert program.seal()
    program.close()
    assert not program.seal()


def test_sealed_commands_of_a_lost_device_are_not_submitted(
    adapter: DeviceInfo, monkeypatch: pytest.MonkeyPatch
):
    device = Device.open(adapter)
    program, data = counting(device)
    for _ in range(2):
        check(program, data, 1, 0.0)
    assert program.seal()
    device.lose_for_test()
    for name in ("send", "send_sealed"):
        monkeypatch.setattr(Native, name, lambda *_: pytest.fail("submitted"))
    for _ in range(2):
        with pytest.raises(DeviceLost, match="open a new one"):
            program.replay()
    program.close()
    device.close()


def test_replays_that_fail_run_none(device: Device, monkeypatch: pytest.MonkeyPatch):
    program, data = counting(device)
    check(program, data, 2, 1.0)

    def fail(*_: object) -> None:
        raise wgpu.GPUValidationError("no")

    with monkeypatch.context() as patched:
        patched.setattr(Native, "send", fail)
        with pytest.raises(DeviceError, match="no"):
            program.replays(2)
    check(program, data, 2, 3.0)


def test_closing_drops_what_was_recorded_and_not_read(either: Device):
    program, data = counting(either)
    for _ in range(2):
        check(program, data, 2, 0.0)
    assert program.prepared
    pending = program.replays(2)
    assert program._ring is not None
    buffer = program._ring._buffer
    program.close()
    assert buffer is not None
    assert not buffer.alive
    for each in pending:
        with pytest.raises(DeviceError, match="counting: closed before its results were read"):
            each.wait()
