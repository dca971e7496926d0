from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Any

import pytest

from tests.device.kernels import body, double, floats, numbers, shader
from tests.patience import PATIENCE
from wgpu_backend.device import program as program_module
from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.native import Native
from wgpu_backend.device.pending import Pending, split
from wgpu_backend.device.program import READBACK_SLOTS, Program, split_portions
from wgpu_backend.device.wgsl.module import BindingDecl
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import DeviceInfo


def chain(device: Device, length: int, reads: bool = True) -> tuple[Program, Buffer]:
    """x → 2x → 4x → …, and the buffer x is written to."""
    pipeline = device.pipeline(shader())
    buffers = [floats(device, 10) for _ in range(length + 1)]
    steps = [
        double(pipeline, a, b, f"step {n}") for n, (a, b) in enumerate(itertools.pairwise(buffers))
    ]
    last = [Binding(buffers[-1])] if reads else []
    return device.program(steps, reads=last, label="chain"), buffers[0]


def test_what_is_read_is_cut_at_words():
    assert split(b"abc.efghi...", [3, 4, 1]) == [b"abc", b"efgh", b"i"]


@pytest.mark.gpu
def test_a_portion_is_bounded_by_number_and_by_work(
    device: Device, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(program_module, "MAX_DISPATCHES_PER_SUBMIT", 3)
    monkeypatch.setattr(program_module, "MAX_WORK_PER_SUBMIT", 10)
    pipeline = device.pipeline(shader())

    def sizes(*works: int) -> list[int]:
        made = [Dispatch(pipeline, (), (1, 1, 1), work=work) for work in works]
        return [len(portion) for portion in split_portions(made)]

    assert sizes(*[0] * 7) == [3, 3, 1]
    assert sizes(5, 5, 9, 2, 8) == [2, 1, 2]
    assert sizes(99, 99, 99) == [1, 1, 1]
    assert sizes() == [0]


@pytest.mark.gpu
def test_each_dispatch_sees_what_the_ones_before_wrote(either: Device):
    program, _ = chain(either, 6)
    assert [64.0 * n for n in range(10)] == numbers(program.replay().wait()[0])


@pytest.mark.gpu
def test_several_submits_give_the_same(either: Device, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_module, "MAX_DISPATCHES_PER_SUBMIT", 2)
    program, _ = chain(either, 5)
    assert program.submits == 3
    before = either.counters.submits
    assert [32.0 * n for n in range(10)] == numbers(program.replay().wait()[0])
    assert before + 3 == either.counters.submits


@pytest.mark.gpu
def test_a_replay_makes_nothing(either: Device):
    program, _ = chain(either, 20)
    for _ in range(2):  # the second one's wait records the third, which needs a slot of its own
        program.replay().wait()
    made = either.counters
    before = (made.buffers, made.pipelines, made.bind_groups)
    submits, dispatches = made.submits, made.dispatches
    for _ in range(10):
        program.replay().wait()
    assert before == (made.buffers, made.pipelines, made.bind_groups)
    assert (submits + 10, dispatches + 200) == (made.submits, made.dispatches)


@pytest.mark.gpu
def test_who_waits_records_the_next_replay(either: Device):
    program, x = chain(either, 3)
    prepared: list[bool] = []
    for start in range(2 * READBACK_SLOTS):
        either.write(x, floats_bytes(float(start)))
        pending = program.replay()
        assert not program.prepared
        assert numbers(pending.wait()[0])[0] == 8.0 * start
        prepared.append(program.prepared)
    assert prepared == [False, *[True] * (2 * READBACK_SLOTS - 1)]


@pytest.mark.gpu
def test_results_under_way_while_the_next_replay_is_recorded(either: Device):
    program, x = chain(either, 1)
    under_way = deque[tuple[float, Pending]]()
    for start in range(30):
        either.write(x, floats_bytes(float(start)))
        under_way.append((2.0 * start, program.replay()))
        if len(under_way) > start % (READBACK_SLOTS + 2):  # now none is left free, now all
            first, pending = under_way.popleft()
            assert numbers(pending.wait()[0])[0] == first
    assert all(numbers(pending.wait()[0])[0] == first for first, pending in under_way)


@pytest.mark.gpu
def test_nothing_is_recorded_ahead_while_another_thread_is_at_the_queue(
    device: Device, monkeypatch: pytest.MonkeyPatch
):
    program, _ = chain(device, 1)
    program.replay().wait()
    pending = program.replay()
    other, done = chain(device, 1)[0], threading.Event()
    record, busy = Native.record, threading.Event()

    def slow(*args: Any) -> Any:
        busy.set()
        assert done.wait(PATIENCE)
        return record(*args)

    monkeypatch.setattr(Native, "record", slow)
    thread = threading.Thread(target=other.replay)
    thread.start()
    assert busy.wait(PATIENCE)
    assert numbers(pending.wait()[0])[1] == 2.0  # would never end if it waited for the queue
    assert not program.prepared
    done.set()
    thread.join()


@pytest.mark.gpu
def test_several_portions_are_recorded_when_they_are_due(
    either: Device, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(program_module, "MAX_DISPATCHES_PER_SUBMIT", 2)
    program, _ = chain(either, 5)
    for _ in range(3):
        assert numbers(program.replay().wait()[0])[1] == 32.0
        assert not program.prepared


@pytest.mark.gpu
def test_equal_bindings_share_a_bind_group(device: Device):
    pipeline = device.pipeline(shader())
    a, b = floats(device, 4), floats(device, 4)
    before = device.counters.bind_groups
    device.program([double(pipeline, a, b)] * 7)
    assert before + 1 == device.counters.bind_groups


@pytest.mark.gpu
def test_the_next_replay_sees_new_input(either: Device):
    program, x = chain(either, 1)
    results: list[list[float]] = []
    for start in (0.0, 5.0):
        either.write(x, floats_bytes(start))
        results.append(numbers(program.replay().wait()[0])[:2])
    assert results == [[0.0, 2.0], [10.0, 12.0]]


@pytest.mark.gpu
def test_a_replay_brings_what_it_is_given_as_it_is_then(either: Device):
    a, b = floats(either, 10), floats(either, 10)
    data = bytearray(floats_bytes(0.0)[:8])
    steps, reads = [double(either.pipeline(shader()), a, b)], [Binding(b)]
    program = either.program(steps, reads=reads, given=(Binding(a, 4, 8), memoryview(data)))
    pending = [program.replay()]
    data[:] = floats_bytes(5.0)[:8]
    pending.append(program.replay())
    assert [numbers(p.wait()[0])[:4] for p in pending] == [
        [0.0, 0.0, 2.0, 6.0],
        [0.0, 10.0, 12.0, 6.0],
    ]
    a.release()
    with pytest.raises(DeviceError, match="is used after its release"):
        program.replay()


@pytest.mark.gpu
@pytest.mark.parametrize(("place", "nbytes", "says"), [
    ((4, 8), 4, "given 4 bytes for 8"),
    ((4, 6), 6, "given 6 bytes for 6, needs a multiple of 4"),
    ((2, 8), 8, "given: offset 2, a multiple of 4"),
    ((8, 40), 40, "given: bytes 8 to 48 of Buffer"),
])  # fmt: skip
def test_what_is_given_has_to_fit(device: Device, place: tuple[int, int], nbytes: int, says: str):
    given = Binding(floats(device, 10), *place), memoryview(bytes(nbytes))
    with pytest.raises(DeviceError, match=says):
        device.program([], given=given)


def floats_bytes(start: float) -> bytes:
    import numpy as np

    return np.arange(start, start + 10, dtype=np.float32).tobytes()


@pytest.mark.gpu
def test_results_wait_in_a_ring_until_read(either: Device):
    program, x = chain(either, 1)
    pending = []
    for start in range(READBACK_SLOTS + 3):
        either.write(x, floats_bytes(float(start)))
        pending.append(program.replay())
    firsts = [numbers(p.wait()[0])[0] for p in reversed(pending)]
    assert firsts == [2.0 * start for start in reversed(range(len(pending)))]
    assert pending[0].wait() is pending[0].wait()


@pytest.mark.gpu
def test_results_that_nobody_can_ask_for_leave_their_slots(either: Device):
    program, x = chain(either, 1)
    kept = program.replay()
    for _ in range(3):
        program.replay()
    program.replay().wait()  # which records the next one, into a slot of its own
    before = either.counters.buffers
    for start in range(READBACK_SLOTS):
        either.write(x, floats_bytes(float(start)))
        assert numbers(program.replay().wait()[0])[0] == 2.0 * start
    assert before == either.counters.buffers
    assert numbers(kept.wait()[0])[1] == 2.0


@pytest.mark.gpu
def test_several_ranges_of_any_length_are_read(either: Device):
    a = floats(either, 16)
    reads = [Binding(a, 0, 5), Binding(a, 32), Binding(a, 8, 1)]
    data = either.program([], reads=reads).replay().wait()
    whole = either.read(a)
    assert [whole[:5], whole[32:], whole[8:9]] == data


@pytest.mark.gpu
def test_without_reads_there_is_nothing_to_wait_for(device: Device):
    program, _ = chain(device, 1, reads=False)
    assert program.replay().wait() == []


@pytest.mark.gpu
@pytest.mark.parametrize("profile", ["full", "baseline"])
@pytest.mark.parametrize("native", [True, False])
def test_each_dispatch_is_timed(adapter: DeviceInfo, profile, native: bool):
    with Device.open(adapter, profile=profile, native=native) as opened:
        program, _ = chain(opened, 4)
        timings = program.timed()
        assert [f"step {n}" for n in range(4)] == [t.label for t in timings]
        assert {"double"} == {t.shader for t in timings}
        assert all(0 <= t.seconds < 10 for t in timings)
        assert any(t.seconds > 0 for t in timings)
        assert numbers(program.replay().wait()[0])[3] == 48.0
        assert opened.program([]).timed() == []


@pytest.mark.gpu
def test_a_longer_kernel_takes_longer(device: Device):
    loop = "var s = 0; for (var n = 0; n < a[1]; n++) { s += n ^ a[2]; } a[0] = s;"
    pipeline = device.pipeline(body(loop))

    def loops(count: int) -> Dispatch:
        a = device.buffer(16, purpose="inputs")
        device.write(a, count.to_bytes(4, "little") * 4)
        return Dispatch(pipeline, (Binding(a),), (64, 1, 1))

    program = device.program([loops(1), loops(60_000)])
    program.timed()  # the first run pays for what drivers do lazily
    short, long = (t.seconds for t in program.timed())
    assert long > 3 * short


@pytest.mark.gpu
def test_a_closed_program_says_so(device: Device):
    program, _ = chain(device, 1)
    pending = program.replay()
    program.close()
    program.close()
    with pytest.raises(DeviceError, match="chain: the program is closed"):
        program.replay()
    with pytest.raises(DeviceError, match="chain: the program is closed"):
        program.timed()
    with pytest.raises(DeviceError, match="chain: closed before"):
        pending.wait()


@pytest.mark.gpu
def test_what_was_read_outlives_the_program(device: Device):
    program, _ = chain(device, 1)
    pending = program.replay()
    data = pending.wait()
    program.close()
    assert data is pending.wait()


@pytest.mark.gpu
def test_a_program_refuses_to_replay_over_a_released_buffer(either: Device):
    program, x = chain(either, 2)
    program.replay().wait()
    x.release()
    with pytest.raises(DeviceError, match="used after its release"):
        program.replay()
    with pytest.raises(DeviceError, match="used after its release"):
        program.timed()


@pytest.mark.gpu
def test_a_buffer_released_while_in_use_is_not_given_to_somebody_else_too_early(either: Device):
    program, x = chain(either, 3)
    pending = program.replay()
    x.release()
    again = floats(either, 10, start=7)  # the same memory, written after the replay
    assert [8.0 * n for n in range(10)] == numbers(pending.wait()[0])
    again.release()


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [(65536, 1, 1), (1, 70000, 1), (1, 1, -1), (1, 1)])
def test_too_many_work_groups_are_refused(device: Device, groups: tuple[int, int, int]):
    a, b = floats(device, 4), floats(device, 4)
    dispatch = Dispatch(device.pipeline(shader()), (Binding(a), Binding(b)), groups, "op")
    with pytest.raises(DeviceError, match=r"op: \(.*takes 0 to"):
        device.program([dispatch])


@pytest.mark.gpu
def test_no_work_groups_at_all_do_nothing(either: Device):
    a, b = floats(either, 4), floats(either, 4)
    dispatch = Dispatch(either.pipeline(shader()), (Binding(a), Binding(b)), (0, 1, 1))
    either.program([dispatch]).replay()
    assert numbers(either.read(b)) == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.gpu
def test_bindings_that_do_not_fit_are_refused(device: Device):
    pipeline = device.pipeline(shader())
    alignment = device.capabilities.binding_alignment
    a, b = floats(device, 1024), floats(device, 1024)

    def refused(bindings: tuple[Binding, ...], says: str) -> None:
        with pytest.raises(DeviceError, match=says):
            device.program([Dispatch(pipeline, bindings, (1, 1, 1), "op")])

    refused((Binding(a),), "op: 1 bindings, double declares 2")
    refused((Binding(a), Binding(b, 4)), f"op: b: offset 4, a multiple of {alignment} is needed")
    refused((Binding(a, 4096), Binding(b)), "op: a: bytes 4096 to 4096")
    refused((Binding(a, 0, 4097), Binding(b)), "op: a: bytes 0 to 4097 .* holds 4096")
    refused((Binding(a, -256, 256), Binding(b)), "op: a: bytes -256 to 0")
    refused((Binding(a, 0, -4), Binding(b)), "op: a: bytes 0 to -4")
    refused((Binding(a, 256), Binding(a, 0, 256)), "bound read and read_write")


@pytest.mark.gpu
def test_a_buffer_may_be_read_twice_by_one_dispatch(device: Device):
    names = zip("acb", ("read", "read", "read_write"), strict=True)
    bindings = tuple(BindingDecl(name, n, access) for n, (name, access) in enumerate(names))
    text = shader().text.replace("@binding(1)", "@binding(2)").replace(
        "\n\n@compute", "\n@group(0) @binding(1) var<storage, read> c: array<f32>;\n\n@compute"
    ).replace("* 2.0", "+ c[id.x]")  # fmt: skip
    pipeline = device.pipeline(shader(text, bindings, label="sum"))
    a, b = floats(device, 4), floats(device, 4)
    three = (Binding(a), Binding(a), Binding(b))
    device.program([Dispatch(pipeline, three, (1, 1, 1))]).replay()
    assert numbers(device.read(b)) == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.gpu
def test_a_binding_larger_than_the_device_shows_is_refused(fresh: Device):
    most = fresh.capabilities.max_binding_nbytes
    if most + 4 > min(fresh.capabilities.max_buffer_nbytes, 1 << 28):
        pytest.skip("no buffer can be larger than a binding here")
    large, b = fresh.buffer(most + 4, purpose="cache"), floats(fresh, 4)
    bindings = (Binding(large), Binding(b))
    with pytest.raises(DeviceError, match="128 MiB in one binding, the device allows 128 MiB"):
        fresh.program([Dispatch(fresh.pipeline(shader()), bindings, (1, 1, 1))])
    fitting = (Binding(large, 0, most), Binding(b))
    fresh.program([Dispatch(fresh.pipeline(shader()), fitting, (1, 1, 1))])


@pytest.mark.gpu
def test_a_uniform_smaller_than_its_struct_is_refused(device: Device):
    text = (
        "struct Params { value: array<vec4<f32>, 40> }\n" + body("a[0] = i32(p.value[1].x);").text
    )
    text = text.replace("@compute", "@group(0) @binding(1) var<uniform> p: Params;\n@compute")
    bindings = (BindingDecl("a", 0, "read_write"), BindingDecl("p", 1, "uniform"))
    pipeline = device.pipeline(shader(text, bindings))
    a, p = floats(device, 4), device.buffer(16, purpose="params")
    program = device.program([Dispatch(pipeline, (Binding(a), Binding(p)), (1, 1, 1))], label="op")
    with pytest.raises(DeviceError, match=r"op: .*16"):
        program.replay()
    assert len(numbers(device.read(a))) == 4


@pytest.mark.gpu
def test_threads_share_a_device(either: Device):
    failures: list[BaseException] = []

    def work(start: float) -> None:
        try:
            program, x = chain(either, 5)
            either.write(x, floats_bytes(start))
            for _ in range(25):
                assert 32.0 * start == numbers(program.replay().wait()[0])[0]
                assert start == numbers(either.read(x))[0]
            program.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(float(n + 1),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.gpu
def test_a_pipeline_of_another_device_is_refused(device: Device, fresh: Device):
    foreign = fresh.pipeline(shader())
    a, b = floats(device, 4), floats(device, 4)
    with pytest.raises(DeviceError, match="double: its pipeline was compiled on another device"):
        device.program([double(foreign, a, b)])


@pytest.mark.gpu
def test_a_readback_buffer_cannot_be_bound(device: Device):
    a, b = floats(device, 4), device.buffer(16, purpose="readback", label="result")
    with pytest.raises(DeviceError, match="double: "):
        device.program([double(device.pipeline(shader()), a, b)])
    with pytest.raises(DeviceError, match="read result: "):
        device.read(b)
    b.release()
