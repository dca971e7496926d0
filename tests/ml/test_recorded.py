"""Graphs that run: with and without shared slots, in poisoned memory, again and again."""

import functools

import numpy as np
import pytest

from tests.graph.graphs import random_graph
from wgpu_backend.dtypes import F16, F32, I32, Q4_0
from wgpu_backend.errors import ContextError, DeviceError, DTypeError, ShapeError
from wgpu_backend.graph.memory import plan
from wgpu_backend.graph.node import Launch
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu import executor as wgpu_executor
from wgpu_backend.ops.op import op
from wgpu_backend.testing import forget, nmse

ROUNDING = 2.0**-28  # four steps of f32 at a hundredth
SHAPES = [(8, 16), (1, 33), (16, 8), (3, 5)]


def outputs_of(executor, seed, size=40):
    """Values of the outputs of a random graph."""
    rng = np.random.default_rng(seed)
    with Context(executor) as ctx:
        leaves = [ctx.from_numpy(rng.standard_normal(shape, "f4")) for shape in SHAPES]
        outputs = random_graph(ctx, rng, leaves, size)
        recorded = ctx.record(*outputs)
        try:
            return recorded.run({}).wait()
        finally:
            recorded.close()


def assert_close(got, want):
    # Forty ops one after another, some through f16: one step of f16 may flip on the way. Where
    # values of about one cancel, as in tanh(x) - x, what is left is their rounding.
    assert all(
        nmse(a, b) < 1e-6 or np.abs(a - b).max() <= ROUNDING for a, b in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("seed", range(25))
def test_sharing_slots_changes_nothing(gpu, monkeypatch, seed):
    shared = outputs_of(gpu, seed)
    monkeypatch.setattr(wgpu_executor, "plan", functools.partial(plan, reuse=False))
    apart = outputs_of(gpu, seed)
    for a, b in zip(shared, apart, strict=True):
        np.testing.assert_array_equal(a, b)
    assert_close(shared, outputs_of(NumpyExecutor(), seed))


def poison(device, buffer):
    device.write(buffer, np.full(buffer.nbytes // 4, 0xFFFFFFFF, "u4"))


@pytest.fixture
def poisoned(gpu, monkeypatch):
    """An executor whose fresh and recycled memory is full of NaN."""
    acquire = gpu.device.buffer

    def buffer(nbytes, **options):
        made = acquire(nbytes, **options)
        if made.purpose != "readback":
            poison(gpu.device, made)
        return made

    monkeypatch.setattr(gpu.device, "buffer", buffer)
    return gpu


@pytest.mark.parametrize("seed", range(100, 125))
def test_nothing_reads_memory_that_was_not_written(poisoned, seed):
    assert_close(outputs_of(poisoned, seed), outputs_of(NumpyExecutor(), seed))


def test_poison_would_be_noticed(poisoned):
    """The fixture works: bytes nobody wrote are NaN."""
    buffer = poisoned.device.buffer(64, purpose="activations")
    assert np.isnan(np.frombuffer(poisoned.device.read(buffer), "f4")).all()
    buffer.release()


def test_a_state_begins_as_zeros(poisoned):
    with Context(poisoned) as ctx:
        assert not ctx.zeros(33, 5).numpy().any()
        assert not ctx.zeros(33, dtype=F16).numpy().any()


def test_runs_leave_nothing_behind_for_the_next(gpu, rng):
    with Context(gpu) as ctx:
        x = ctx.input("x", (8, 16))
        y = ((x + x.softmax()).silu().permute(1, 0).contiguous() * 2).rms_norm(eps=1e-5)
        recorded = ctx.record(y)
        first, second = (rng.standard_normal((8, 16), "f4") for _ in range(2))
        before = recorded.run({"x": first}).wait()[0]
        recorded.run({"x": second}).wait()
        for buffer in gpu._slots._buffers:
            poison(gpu.device, buffer)
        after = recorded.run({"x": first}).wait()[0]
        recorded.close()
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("kind", ["full", "numpy"])
def test_two_graphs_share_memory_and_not_values(executors, rng, kind):
    executor = NumpyExecutor() if kind == "numpy" else executors(kind)
    values = rng.standard_normal((8, 16), "f4")
    with Context(executor) as ctx:
        x = ctx.input("x", (8, 16))
        one, other = ctx.record(x.silu().softmax()), ctx.record((x * x + 1).softmax())
        first = one.run({"x": values}).wait()[0]
        other.run({"x": values}).wait()
        np.testing.assert_array_equal(one.run({"x": values}).wait()[0], first)
        one.close()
        other.close()


@pytest.fixture(params=["wgpu", "numpy"])
def executor(request, executors):
    return executors("full") if request.param == "wgpu" else NumpyExecutor()


def test_outputs_may_be_views(executor, rng):
    values = rng.standard_normal((3, 8), "f4")
    with Context(executor) as ctx:
        x = ctx.input("x", (3, 8)).scale(factor=2)
        views = [x.permute(1, 0), x.slice(1, 2, 5), x[1], x.reshape(4, 6)]
        recorded = ctx.record(*views)
        found = recorded.run({"x": values}).wait()
        recorded.close()
    twice = 2 * values
    for got, want in zip(
        found, [twice.T, twice[:, 2:5], twice[1], twice.reshape(4, 6)], strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_the_same_tensor_may_be_output_twice(executor):
    with Context(executor) as ctx:
        y = ctx.from_floats([1, 2]).scale(factor=2)
        recorded = ctx.record(y, y)
        first, second = recorded.run({}).wait()
        recorded.close()
    assert first.tolist() == second.tolist() == [2, 4]


def test_inputs_are_checked_by_name_shape_and_type(executor):
    with Context(executor) as ctx:
        recorded = ctx.record(ctx.input("x", (3,)) * 2)
        with pytest.raises(ContextError, match=r"inputs are \['x'\], got \['y'\]"):
            recorded.run({"y": np.zeros(3, "f4")})
        with pytest.raises(ShapeError, match=r"input x: got \(4,\), needs \(3,\)"):
            recorded.run({"x": np.zeros(4, "f4")})
        with pytest.raises(DTypeError, match="input x: got float64, needs float32"):
            recorded.run({"x": np.zeros(3)})
        with pytest.raises(DTypeError, match=r"input x: got a list, needs an array of \(3,\), fl"):
            recorded.run({"x": [1, 2, 3]})
        recorded.close()


def test_a_replay_takes_what_its_arrays_hold(executor):
    with Context(executor) as ctx:
        recorded = ctx.record(ctx.input("x", (2, 3)).transpose() + ctx.input("y", (2,)))
        recorded.arrays["x"][...] = [[1, 2, 3], [4, 5, 6]]
        recorded.arrays["y"][...] = [10, 20]
        first = recorded.replay()
        recorded.arrays["y"][0] = 30  # what is under way keeps what it was given
        np.testing.assert_array_equal(first.wait()[0], [[11, 24], [12, 25], [13, 26]])
        np.testing.assert_array_equal(recorded.replay().wait()[0], [[31, 24], [32, 25], [33, 26]])


def test_replays_in_one_submit_have_inputs_of_their_own(executor):
    with Context(executor) as ctx:
        total, x = ctx.zeros(1, 4), ctx.input("x", (1, 4))
        recorded = ctx.record(total.set_rows(x + total, ctx.from_ints([0])), times=3)
        expected = 0.0
        for count in (3, 1, 2, 3, 3):
            for turn, value in zip(recorded.turns[:count], range(count), strict=True):
                turn["x"][...] = 1 + value
            results = recorded.replays(count)
            recorded.turns[0]["x"][...] = 99  # what is under way keeps what it was given
            for value, result in enumerate(results):
                expected += 1 + value
                assert result.wait()[0].tolist() == [[expected] * 4]
        for count in (0, 4):
            with pytest.raises(ContextError, match=f"{count} at once, the graph was recorded"):
                recorded.replays(count)
        recorded.close()


def test_a_run_that_is_refused_leaves_the_arrays_alone(executor):
    with Context(executor) as ctx:
        recorded = ctx.record(ctx.input("x", (2,)) + ctx.input("y", (2,)))
        recorded.run({"x": np.ones(2, "f4"), "y": np.ones(2, "f4")})
        with pytest.raises(ShapeError, match=r"input y: got \(3,\), needs \(2,\)"):
            recorded.run({"x": np.zeros(2, "f4"), "y": np.zeros(3, "f4")})
        np.testing.assert_array_equal(recorded.replay().wait()[0], [2, 2])


def test_inputs_of_a_run_that_was_refused_serve_other_graphs(executor):
    with Context(executor) as ctx:
        a, b = ctx.input("a", (3,)), ctx.input("b", (3,))
        both = ctx.record(a + b)
        with pytest.raises(ShapeError, match="input b"):
            both.run({"a": np.ones(3, "f4"), "b": np.ones(4, "f4")})
        one = ctx.record(a * 2)
        assert one.run({"a": np.ones(3, "f4")}).wait()[0].tolist() == [2, 2, 2]
        both.close()
        one.close()


def test_states_keep_their_values_between_runs(executor):
    with Context(executor) as ctx:
        total = ctx.zeros(1, 4)
        x = ctx.input("x", (1, 4))
        recorded = ctx.record(total.set_rows(x + total.scale(factor=1), ctx.from_ints([0])))
        for _ in range(3):
            last = recorded.run({"x": np.ones((1, 4), "f4")}).wait()[0]
        recorded.close()
        assert last.tolist() == total.numpy().tolist() == [[3, 3, 3, 3]]


def test_forward_runs_writes_nobody_asked_for(executor):
    with Context(executor) as ctx:
        cache = ctx.zeros(2, 4)
        write = cache.set_rows(ctx.from_floats([1, 2, 3, 4], 1, 4), ctx.from_ints([1]))
        ctx.forward(write).compute(ctx.from_floats([1]) * 2)
        assert cache.numpy().tolist() == [[0, 0, 0, 0], [1, 2, 3, 4]]


def test_computed_tensors_are_not_computed_again(executor):
    with Context(executor) as ctx:
        cache = ctx.zeros(1, 4)
        before = cache.rows(ctx.from_ints([0]))
        ctx.compute(before)
        ctx.compute(cache.set_rows(ctx.from_floats([1] * 4, 1, 4), ctx.from_ints([0])))
        assert before.numpy().tolist() == [[0] * 4]
        assert cache.numpy().tolist() == [[1] * 4]


@pytest.mark.parametrize("dtype", [F32, F16, I32], ids=str)
def test_constants_come_back(executor, dtype):
    with Context(executor) as ctx:
        assert ctx.from_numpy([[1, 2], [3, 4]], dtype).permute(1, 0).numpy().tolist() == [
            [1, 3],
            [2, 4],
        ]


def test_views_of_weights_come_back(executor, rng):
    from tests.ops.operands import weight, weight_bytes

    data = weight_bytes(rng, 9, 64, Q4_0)
    with Context(executor) as ctx:
        whole = weight(executor, 9, 64, Q4_0, data)
        values = executor.read(whole)
        view = ctx.view(whole, whole.spec).slice(0, 3, 7)
        np.testing.assert_array_equal(executor.read(view), values[3:7])


def test_a_weight_in_parts_is_refused_where_ops_see_one(split, rng):
    """Only products and rows know of parts; others would silently read the first."""
    from tests.ops.operands import tensor, weight, weight_bytes

    data = weight_bytes(rng, 2000, 33, F32)
    with Context(split) as ctx:
        x = weight(split, 2000, 33, F32, data)
        assert len(x.storage.handle) > 1
        with pytest.raises(DeviceError, match="5 bindings of the device, 2000 rows"):
            x.mulmat(tensor(ctx, np.ones((1, 33)))).numpy()


def test_a_slice_of_a_weight_in_parts_is_refused(split, rng):
    from tests.ops.operands import weight, weight_bytes

    data = weight_bytes(rng, 999, 64, F32)
    with Context(split) as ctx:
        part = weight(split, 999, 64, F32, data).slice(0, 400, 999)
        with pytest.raises(DeviceError, match=r"rows: weights of \(599, 64\) .* 999 rows in all"):
            part.rows(ctx.from_ints([0, 1, 590])).numpy()


def test_released_tensors_cannot_be_read(executor):
    with Context(executor) as ctx:
        x = ctx.from_floats([1, 2])
        y = x * 2
        y.numpy()
    with pytest.raises(ContextError, match="closed"):
        y.numpy()


FIELDS = [f"f{i}" for i in range(80)]
MANY_FIELDS = """
const WG: u32 = 64u;
struct Params { size: u32, FIELDS }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.size {
        y[id.x] = x[id.x] * params.f0 + params.f79;
    }
}
""".replace("FIELDS", ", ".join(f"{name}: f32" for name in FIELDS))


def test_an_op_may_have_as_many_parameters_as_it_likes(full):
    @op(source=MANY_FIELDS, dense=("x",))
    def lavish(x, *, first):
        values = dict(zip(FIELDS, range(first, first + len(FIELDS)), strict=True))
        return Launch(x.spec, {"x": x}, threads=x.spec.size, params={"size": 3, **values})

    try:
        with Context(full) as ctx:
            y = lavish(lavish(ctx.from_floats([1, 2, 3]), first=2), first=4) * 2
            assert y.numpy().tolist() == [2 * (4 * (2 * v + 81) + 83) for v in (1, 2, 3)]
    finally:
        forget(lavish)
