"""Graphs over several devices: the same values as on one, in order, and errors that say where."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from tests.builders import Dims, tiny_model
from tests.graph.graphs import random_graph
from tests.ml.test_recorded import SHAPES, assert_close, outputs_of
from tests.models.running import running
from tests.placing import placement, spread
from wgpu_backend.device.adapters import Devices
from wgpu_backend.dtypes import BF16, F16, F32, I32
from wgpu_backend.engine.runner import Head, Work
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.errors import ContextError, DeviceError, DeviceLost
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml import placed_graph
from wgpu_backend.ml.backend import BackendParams
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import weight_values
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.opening import open_placed
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import Placement
from wgpu_backend.ops.sampling.host import SamplingOptions


def numpy_devices(count=2):
    executor = PlacedExecutor([NumpyExecutor() for _ in range(count)], placement(4, count))
    executor.unclosed.silence()
    return executor


@pytest.fixture
def placed():
    with_two = numpy_devices()
    yield with_two
    with_two.close()


def pinned_outputs(executor, seed):
    """Values of a random graph whose nodes are on random devices, and the number of its parts."""
    rng = np.random.default_rng(seed)
    with Context(executor) as ctx:
        leaves = [ctx.from_numpy(rng.standard_normal(shape, "f4")) for shape in SHAPES]
        outputs = random_graph(ctx, rng, leaves, 40)
        chosen = np.random.default_rng(seed)
        devices = executor.placement.devices
        for node in schedule(outputs):
            if chosen.random() < 0.3:
                executor.pin(node.storage, devices[chosen.integers(len(devices))])
        recorded = ctx.record(*outputs)
        try:
            return recorded.run({}).wait(), len(recorded.devices)
        finally:
            recorded.close()


def test_a_graph_in_any_parts_gives_what_one_device_gives():
    executor, parts = numpy_devices(3), []
    for seed in range(40):
        got, count = pinned_outputs(executor, seed)
        parts.append(count)
        for a, b in zip(got, outputs_of(NumpyExecutor(), seed), strict=True):
            np.testing.assert_array_equal(a, b)
    assert max(parts) > 6
    executor.close()


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_gpu_and_numpy_give_the_same(full, seed):
    executor = PlacedExecutor([full, NumpyExecutor()], placement(2, 2))
    executor.unclosed.silence()
    assert_close(pinned_outputs(executor, seed)[0], outputs_of(NumpyExecutor(), seed))


# Values that cross.


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32, "bool", "u8"])
def test_values_of_each_type_cross_unchanged(placed, dtype):
    values = np.array([0, 1, 2, 250], "f4")
    with Context(placed) as ctx:
        x = ctx.from_numpy(values).cast(dtype=dtype).to("device 0")
        y = x.to("device 1").cast(dtype=F32).to("device 0")
        want = values != 0 if dtype == "bool" else values
        np.testing.assert_array_equal(y.numpy(), want)


def test_only_hidden_states_cross(tmp_path):
    """Positions, tables and slots are given to each device."""
    executor = spread([NumpyExecutor(), NumpyExecutor()], tiny_model(tmp_path / "tiny.gguf"))
    with running(tmp_path / "tiny.gguf", executor) as model:
        model.anew([1, 2, 3])
        (made,) = model.runner._passes.values()
    assert made.recorded.devices == (0, 1)
    first, second = made.recorded._parts
    assert not first.crossings
    assert list(second.crossings.values()) == [(0, 0)]


def test_an_intermediate_that_another_device_writes_into_is_copied_first(placed):
    with Context(placed) as ctx:
        x = ctx.from_numpy(np.zeros((4, 2), "f4")).add(ctx.from_numpy([1.0, 1.0])).to("device 0")
        doubled = x.scale(factor=2.0)
        row = ctx.from_numpy(np.full((1, 2), 7, "f4")).to("device 1")
        written = x.set_rows(row, ctx.from_ints([2]))
        ctx.compute(doubled, written)
        assert doubled.tolist() == [[2, 2]] * 4
        assert written.tolist() == [[1, 1], [1, 1], [7, 7], [1, 1]]


# States.


def test_a_layers_state_is_read_and_written_on_its_device(placed):
    with Context(placed) as ctx:
        first, last = ctx.layer(0).zeros(3), ctx.layer(3).zeros(3)
        x = first.add(ctx.from_numpy([1.0, 2.0, 3.0]))
        y = last.add(ctx.from_numpy([1.0, 1.0, 1.0])).add(x)
        recorded = ctx.record(y)
        assert recorded.devices == (0, 1)
        assert recorded.run({}).wait()[0].tolist() == [2, 3, 4]
        recorded.close()
        assert placed.children[0].cache_nbytes() == {"cache.0.state": 12}
        assert placed.cache_nbytes() == {"cache.0.state": 12, "cache.3.state": 12}


def test_states_of_two_devices_in_one_op_are_an_error_that_names_both(placed):
    with Context(placed) as ctx:
        first, last = ctx.layer(0).zeros(3), ctx.layer(3).zeros(3)
        said = r"add: .*cache\.0.*device 0.*cache\.3.*device 1.*to"
        with pytest.raises(ContextError, match=said):
            ctx.compute(first.add(last))
        moved = first.to("device 1").add(last)
        assert moved.tolist() == [0, 0, 0]


def test_an_unknown_device_is_refused(placed):
    with Context(placed) as ctx, pytest.raises(DeviceError, match=r"'vulkan:7'.*device 0"):
        ctx.from_numpy([1.0]).to("vulkan:7")
    with Context(NumpyExecutor()) as ctx:
        assert ctx.from_numpy([1.0]).to("cpu").tolist() == [1]
        with pytest.raises(DeviceError, match="'vulkan:0', the context has only cpu"):
            ctx.from_numpy([1.0]).to("vulkan:0")


def test_runs_see_what_earlier_runs_wrote_on_every_device(placed):
    """A small state that one device writes and another reads, as the tokens of steps."""
    with Context(placed) as ctx:
        state, layer = ctx.zeros(2, 1), ctx.layer(0).zeros(2, 1)
        read = layer.add(state)
        more = state.add(ctx.input("x", (2, 1))).to("device 1")
        written = state.set_rows(more, ctx.from_ints([0, 1]))
        recorded = ctx.record(read, written)
        results = [recorded.run({"x": np.full((2, 1), value, "f4")}) for value in range(4)]
        found = [result.wait() for result in results]
        assert [read[0, 0] for read, _ in found] == [0, 0, 1, 3]
        assert [written[0, 0] for _, written in found] == [0, 1, 3, 6]
        recorded.close()
        state.from_floats([8.0, 9.0])
        assert state.numpy().tolist() == [[8], [9]]
        assert layer.add(state).numpy().tolist() == [[8], [9]]


def test_a_copy_between_devices_goes_through_the_host(placed):
    spec = Spec.dense((3,), F16)
    with Context(placed) as ctx:
        first, last = (ctx.layer(i).zeros(3, dtype=F16) for i in (0, 3))
        first.from_floats([1, 2, 3])
        placed.copy([(first, last)])
        assert last.numpy().tolist() == [1, 2, 3]
        assert last.spec == spec


def test_a_tied_table_is_on_both_devices_and_small_weights_where_they_are_read():
    executor = PlacedExecutor([NumpyExecutor(), NumpyExecutor()], placement(2, 2), tied=True)
    data = memoryview(np.arange(8, dtype="f4").tobytes())
    table = executor.weight(Spec.dense((2, 4), F32), data, "token_embd.weight")
    layer = executor.weight(Spec.dense((2, 4), F32), data, "blk.1.ffn_up.weight+blk.1.ffn_gate")
    tower = executor.weight(Spec.dense((2, 4), F32), data, "v.blk.0.attn_q.weight")
    assert executor.home(table).devices == (0, 1)
    assert executor.home(layer).devices == executor.home(tower).devices == (1,)
    copy = executor.local(table, 1)
    assert copy is not table
    np.testing.assert_array_equal(copy.handle, weight_values(F32, data, Spec.dense((2, 4), F32)))
    executor.close()


# Runs under way.


@pytest.mark.gpu
def test_a_device_begins_the_next_run_before_the_other_has_the_first(full, monkeypatch):
    executor, begun = PlacedExecutor([full, NumpyExecutor()], placement(2, 2)), []
    executor.unclosed.silence()
    with Context(executor) as ctx:
        x = ctx.layer(0).zeros(1).add(ctx.input("x", (1,)))
        recorded = ctx.record(ctx.layer(1).zeros(1).add(x))
        for part in recorded._parts:
            name, replay = f"on {part.device}", part.recorded.replay
            told = functools.partial(
                lambda name, replay: begun.append(name) or replay(), name, replay
            )
            monkeypatch.setattr(part.recorded, "replay", told)
        results = [recorded.run({"x": np.array([n], "f4")}) for n in (1.0, 2.0)]
        assert begun == ["on 0", "on 0"]
        assert results[0].wait()[0].item() == 1
        # The last device has the second run by the end of its part of the first.
        assert begun == ["on 0", "on 0", "on 1", "on 1"]
        assert results[1].wait()[0].item() == 2
        # A caller that never waits does not collect runs without end.
        for _ in range(6):
            recorded.run({"x": np.ones(1, "f4")})
        assert begun.count("on 0") == 8
        assert begun.count("on 1") >= 5
        recorded.close()


def test_a_run_waits_for_a_small_state_of_the_run_before_only_if_it_uses_it(monkeypatch):
    """As a step whose tokens are known does not need those that another step chooses."""
    executor = PlacedExecutor([NumpyExecutor(), NumpyExecutor()], placement(2, 2))
    executor.unclosed.silence()
    # So that values are known once somebody waited for them.
    monkeypatch.setattr("wgpu_backend.ml.placed_graph.NumpyExecutor", int)
    with Context(executor) as ctx:
        state = ctx.state((4,), F32, "kept")
        ctx.assign(state, np.zeros(4, "f4").tobytes())
        x = ctx.layer(0).zeros(4).add(state).add(ctx.input("x", (4,)))
        written = ctx.layer(1).zeros(4).add(x).copy(state)
        recorded = ctx.record(written)
        assert [list(part.states.values()) for part in recorded._parts] == [[state.storage], []]
        runs = []
        for part in recorded._parts:
            replay = part.recorded.replay
            noted = functools.partial(lambda at, go: runs.append(at) or go(), part.device, replay)
            monkeypatch.setattr(part.recorded, "replay", noted)
        ones = {"x": np.ones(4, "f4")}
        first, second = recorded.run(ones), recorded.run(ones)
        # The second reads what the first leaves.
        assert runs == [0]
        np.testing.assert_array_equal(first.wait()[0], np.full(4, 1.0))
        np.testing.assert_array_equal(second.wait()[0], np.full(4, 2.0))
        del runs[:]
        recorded.unused = (state.storage,)
        results = [recorded.run(ones), recorded.run(ones)]
        assert runs == [0, 0]
        for result in results:
            result.wait()
        recorded.unused = ()
        # The host's writes come after all runs before them.
        executor.write(state, np.full(4, 10.0, "f4").tobytes())
        np.testing.assert_array_equal(recorded.run(ones).wait()[0], np.full(4, 11.0))
        recorded.close()


def test_an_error_of_one_run_ends_those_after_it_but_no_later_one(placed, monkeypatch):
    with Context(placed) as ctx:
        x = ctx.layer(0).zeros(1).add(ctx.input("x", (1,)))
        recorded = ctx.record(ctx.layer(3).zeros(1).add(x))
        second = recorded._parts[1].recorded

        def fail():
            raise DeviceError("out of order")

        with monkeypatch.context() as patch:
            patch.setattr(second, "replay", fail)
            one = recorded.run({"x": np.ones(1, "f4")})
            placed.drain()
            # Nothing has waited for that one: the next learns of it.
            with pytest.raises(DeviceError, match="device device 1: out of order"):
                recorded.run({"x": np.ones(1, "f4")})
            with pytest.raises(DeviceError, match="out of order"):
                one.wait()
        assert recorded.run({"x": np.ones(1, "f4")}).wait()[0].tolist() == [1]
        recorded.close()


# Models.


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    dims = Dims(layers=3)
    return tiny_model(tmp_path_factory.mktemp("placed") / "tiny.gguf", dims=dims, tied=True)


@pytest.fixture(params=["numpy", pytest.param("gpu", marks=pytest.mark.gpu)])
def children(request):
    if request.param == "numpy":
        return [NumpyExecutor(), NumpyExecutor()]
    return [request.getfixturevalue("full"), NumpyExecutor()]


TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def greedy(model, count=6):
    """Tokens of steps that are submitted before the one before was read."""
    runner, sampler = model.runner, StepSampler(SamplingOptions(temperature=0.0), 272)
    model.cache.remove(0)
    sampler.start(TOKENS)
    head = Head("greedy", sampler.head(model.model, runner.token_slots))
    results = [runner.prompt(0, TOKENS, head, sampler.inputs())]
    sampler.advance()
    for _ in range(count):
        results.append(runner.run([Work(0, [sampler.newest], (0,))], head, sampler.inputs()))
        sampler.advance()
    return [sampler.token(result.wait()) for result in results]


def test_a_spread_model_gives_what_one_device_gives(path, children):
    with running(path, NumpyExecutor()) as alone:
        wanted, tokens = alone.anew(TOKENS), greedy(alone)
    with running(path, spread(children, path)) as model:
        np.testing.assert_allclose(model.anew(TOKENS), wanted, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(model.anew(TOKENS, 3), wanted, rtol=2e-4, atol=2e-5)
        model.cache.copy_prefix(0, 1, 5)
        again = model.ask(TOKENS[5:], sequence=1)
        np.testing.assert_allclose(again, wanted[5:], rtol=2e-4, atol=2e-5)
        saved = model.cache.save(1)
        model.cache.remove(1)
        model.cache.restore(1, saved)
        assert model.cache.length(1) == len(TOKENS)
        assert greedy(model) == tokens


# Devices.


@pytest.mark.gpu
def test_two_devices_on_one_adapter(path, monkeypatch):
    name = Devices()[0].id
    assert Devices().find(f"{name}#1").id == f"{name}#1"
    placed = Placement((name, f"{name}#1"), (0, 1, 1), 0, 1)
    executor = open_placed(placed, BackendParams(self_test=False), tied=True)
    with Context(executor) as ctx:
        one, other = (executor.children[i].device for i in (0, 1))
        assert one is not other
        assert [info.id for info in executor.devices] == [name, f"{name}#1"]
        x = ctx.layer(0).zeros(3).add(ctx.from_numpy([1.0, 2.0, 3.0]))
        recorded = ctx.record(ctx.layer(2).zeros(3).add(x))
        assert recorded.run({}).wait()[0].tolist() == [1, 2, 3]
        # While the first part is awaited, the commands of the second are made ready.
        plus = ctx.layer(0).zeros(3).add(ctx.input("x", (3,)))
        given = ctx.record(ctx.layer(2).zeros(3).add(plus))
        sealed = []
        for part in given._parts:
            seal = part.recorded.program.seal
            noted = functools.partial(
                lambda at, seal: sealed.append((at, seal())) or sealed[-1][1], part.device, seal
            )
            monkeypatch.setattr(part.recorded.program, "seal", noted)
        for number in range(4):
            values = np.full(3, number, "f4")
            assert given.run({"x": values}).wait()[0].tolist() == [number] * 3
        assert sealed == [(1, False), (1, False), (1, True), (1, True)]
        given.close()
        other.lose_for_test()
        with pytest.raises(DeviceLost, match=f"device {name}#1: "):
            [recorded.run({}).wait() for _ in range(3)]
        recorded.close()
    executor.close()


class Losing(NumpyExecutor):
    """A device that is lost: once its values are waited for, or at once."""

    def __init__(self, *, later):
        super().__init__()
        self.later, self.lost = later, False

    def record(self, *args, **named):
        recorded, child = super().record(*args, **named), self
        plain = recorded.replay

        def replay():
            result = plain()

            def wait():
                if child.lost:
                    raise DeviceLost("graph: the driver lost the device")
                return result.wait()

            if child.lost and not child.later:
                wait()
            return SimpleNamespace(wait=wait)

        recorded.replay = replay
        return recorded


def run_thrice(recorded, runs):
    for _ in range(3):
        runs.append(recorded.run({}))
    for run in runs:
        run.wait()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_the_error_of_a_lost_device_names_it_whoever_waits(monkeypatch, later, at):
    """The values of the first are waited for by the second."""
    # Values of NumPy are there at once, those of this device are not.
    monkeypatch.setattr(placed_graph, "NumpyExecutor", type("No", (), {}))
    children = [Losing(later=later), Losing(later=later)]
    executor = PlacedExecutor(children, placement(2, 2))
    with Context(executor) as ctx:
        x = ctx.layer(0).zeros(3).add(ctx.from_numpy([1.0, 2.0, 3.0]))
        recorded = ctx.record(ctx.layer(1).zeros(3).add(x))
        assert recorded.run({}).wait()[0].tolist() == [1, 2, 3]
        children[at].lost = True
        runs = []
        named = f"^device device {at}: graph: the driver lost the device$"
        with pytest.raises(DeviceLost, match=named):
            run_thrice(recorded, runs)
        for run in runs:
            with pytest.raises(DeviceLost, match=named):
                run.wait()
        # Once the caller has the error, a device that works again is used.
        children[at].lost = False
        assert recorded.run({}).wait()[0].tolist() == [1, 2, 3]
        recorded.close()
    executor.close()


def test_no_such_second_device():
    assert Devices().find("cpu#2").id == "cpu#2"
    for name in ("cpu#0", "cpu#x", "cpu#"):
        with pytest.raises(DeviceError, match="no such device"):
            Devices().find(name)


class Elsewhere:
    """A device of another node, which keeps what is dropped until it closes."""

    lost = None

    def __init__(self):
        self._inner, self.dropped = NumpyExecutor(), []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def reopen(self):
        """Do nothing."""

    def drop(self, handle):
        self.dropped.append(handle)


class WithBuffers:
    """A device of this process that has buffers."""

    def __init__(self):
        self._inner, self.dropped = NumpyExecutor(), []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def drop(self, handle):
        self.dropped.append(handle)


@pytest.mark.parametrize("first", [Elsewhere, NumpyExecutor, WithBuffers])
def test_buffers_are_dropped_by_a_device_of_this_process(first):
    """A stage on another node may come before the device that has them."""
    children = [first(), WithBuffers()]
    executor = PlacedExecutor(children, placement(2, 2))
    executor.drop(("a part",))
    executor.drop(np.zeros(3))
    wanted = [[("a part",)], []] if first is WithBuffers else [[], [("a part",)]]
    assert [getattr(child, "dropped", []) for child in children] == wanted
    executor.close()


def test_without_such_a_device_there_is_nothing_to_drop():
    executor = PlacedExecutor([Elsewhere(), NumpyExecutor()], placement(2, 2))
    executor.drop(("a part",))
    assert executor.children[0].dropped == []
    executor.close()
