"""Graphs whose runs other graphs interrupt: the bits of a run at once, and one run at a time."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from tests.graph.graphs import random_graph
from tests.ml.test_placed_executor import numpy_devices
from tests.ml.test_recorded import SHAPES, outputs_of
from wgpu_backend.dtypes import F16, F32, Q8_0
from wgpu_backend.errors import ContextError, OutOfMemory
from wgpu_backend.files.quantize.rows import encode_blocks
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import OPS_PER_BYTE, estimate_cost
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.ml.wgpu import executor as executor_module

NAMES = [f"x{i}" for i in range(len(SHAPES))]


def inputs_of(seed):
    rng = np.random.default_rng(100 + seed)
    return {n: rng.standard_normal(s, "f4") for n, s in zip(NAMES, SHAPES, strict=True)}


def graph(context, seed):
    leaves = [context.input(name, shape) for name, shape in zip(NAMES, SHAPES, strict=True)]
    outputs = random_graph(context, np.random.default_rng(seed), leaves, 40)
    return max(outputs, key=lambda node: node.sequence)


def check_interrupted(executor, seed):
    """Runs of one to four dispatches each, with another graph between any two."""
    wanted_between = outputs_of(executor, seed + 1)
    with Context(executor) as context:
        y = graph(context, seed)
        whole, parts = context.record(y), context.record_pausable(y)
        needed = {name: inputs_of(seed)[name] for name in whole.arrays}
        [wanted] = whole.run(needed).wait()
        for count in (1, 3):
            run = parts.begin(needed)
            while run.done < len(parts.costs):
                with pytest.raises(ContextError, match=r"were submitted, needs all"):
                    run.result()
                submitted = run.advance(min(count, len(parts.costs) - run.done))
                submitted.wait()
                for a, b in zip(outputs_of(executor, seed + 1), wanted_between, strict=True):
                    np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(run.result().wait()[0], wanted)
            run.close()
        assert all(name and cost > 0 for name, cost in parts.costs)
        for each in (whole, parts):
            each.close()
            each.close()


@pytest.mark.parametrize("seed", range(4))
def test_interrupted_runs_give_the_same_bits(seed):
    check_interrupted(NumpyExecutor(), seed)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(2))
def test_interrupted_runs_give_the_same_bits_on_a_gpu(gpu, seed):
    check_interrupted(gpu, seed)


def test_on_several_devices_the_last_one_runs_it():
    executor = numpy_devices(2)
    check_interrupted(executor, 0)
    data = np.ones((2, 4), "f4").tobytes()
    spec = Spec.dense((2, 4), F32)
    with Context(executor) as context:
        x = context.input("x", (3, 4))
        here = executor.weight(spec, memoryview(data), "v.blk.0.attn_q.weight")
        y = leaf(spec, here, context).mulmat(x)
        parts = context.record_pausable(y)
        run = parts.begin({"x": np.ones((3, 4), "f4")})
        run.advance(len(parts.costs))
        np.testing.assert_array_equal(run.result().wait()[0], np.full((3, 2), 4, "f4"))
        far = executor.weight(spec, memoryview(data), "blk.0.attn_q.weight")
        with pytest.raises(ContextError, match=r"blk\.0\.attn_q\.weight is on device 0, needs all"):
            context.record_pausable(leaf(spec, far, context).mulmat(x))
    executor.close()


@pytest.mark.gpu
def test_a_run_ends_when_another_begins(full):
    """Of any graph, since their intermediates share memory."""
    with Context(full) as context:
        one, other = (context.record_pausable(graph(context, seed)) for seed in (0, 1))
        given = [
            {name: inputs_of(0)[name] for name in each._recorded.arrays} for each in (one, other)
        ]
        run = one.begin(given[0])
        run.advance(1)
        later = other.begin(given[1])
        with pytest.raises(ContextError, match="another pausable run began"):
            run.advance(1)
        # It must not end the later one either.
        run.close()
        later.advance(1)
        later.close()
        with pytest.raises(ContextError, match="the run was closed"):
            later.advance(1)
        one.close()
        other.close()


def test_a_closed_run_keeps_no_values():
    with Context(NumpyExecutor()) as context:
        y = graph(context, 0)
        parts = context.record_pausable(y)
        given = {name: inputs_of(0)[name] for name in parts._recorded.arrays}
        run = parts.begin(given)
        run.advance(len(parts.costs) - 1)
        made = [node.storage for node, _ in parts._recorded.plan.steps]
        assert any(each.handle is not None for each in made)
        parts.begin(given)
        assert all(each.handle is None for each in made)
        with pytest.raises(ContextError, match="another pausable run began"):
            run.advance(1)


def test_costs_are_of_arithmetic_or_transfers():
    with Context(NumpyExecutor()) as context:
        a, b = context.input("a", (640, 512)), context.input("b", (640, 512))
        cost = estimate_cost(a.mulmat(b).launch)
        assert cost >= 2 * 640 * 640 * 512
        assert estimate_cost(a.mulmat(b.slice(0, 0, 2)).launch) == pytest.approx(
            OPS_PER_BYTE * 4 * (640 * 512 + 2 * 512 + 640 * 2), rel=0.01
        )
        assert estimate_cost(a.add(a).launch) == OPS_PER_BYTE * 2 * 4 * 640 * 512


def prepare_by_parts(parts, device, monkeypatch):
    """Get a graph ready in the smallest parts; return the threads that compiled kernels."""
    threads, compile_one, turns = set(), device.pipeline, 0

    def note(shader):
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return compile_one(shader)

    monkeypatch.setattr(device, "pipeline", note)
    while not parts.prepare(0):
        assert not parts.costs
        turns += 1
        assert turns < 100_000
        time.sleep(1e-4)
    assert turns > 2 * len(parts.costs) > 20
    return threads


@pytest.mark.gpu
def test_a_graph_is_recorded_in_parts_and_gives_the_same_bits(full, monkeypatch):
    between = outputs_of(full, 3)
    with Context(full) as context:
        y = graph(context, 2)
        whole, parts = context.record(y), context.record_pausable(y, at_once=False)
        needed = {name: inputs_of(2)[name] for name in whole.arrays}
        [wanted] = whole.run(needed).wait()
        # Other graphs run between two parts.
        assert not parts.prepare(0)
        for a, b in zip(outputs_of(full, 3), between, strict=True):
            np.testing.assert_array_equal(a, b)
        threads = prepare_by_parts(parts, full.device, monkeypatch)
        assert "wgpu_backend compiler" in threads
        for _ in range(2):
            assert parts.prepare(0)
            run = parts.begin(needed)
            run.advance(len(parts.costs)).wait()
            np.testing.assert_array_equal(run.result().wait()[0], wanted)
        # What `prepare` did not do, `begin` does; and a half-made graph can be closed.
        later = context.record_pausable(y, at_once=False)
        later.prepare(0)
        run = later.begin(needed)
        run.advance(len(later.costs)).wait()
        np.testing.assert_array_equal(run.result().wait()[0], wanted)
        half = context.record_pausable(y, at_once=False)
        half.prepare(0)
        for each in (whole, parts, later, half):
            each.close()
            each.close()


@pytest.mark.gpu
def test_a_graph_whose_recording_fails_can_be_recorded_later(full, monkeypatch):
    def fail(*_, **options):
        raise OutOfMemory("no room", "")

    with Context(full) as context:
        y = graph(context, 2)
        with monkeypatch.context() as patch:
            patch.setattr(full._lasting_slots, "take", fail)
            parts = context.record_pausable(y, at_once=False)
            for _ in range(2):
                with pytest.raises(OutOfMemory, match="no room"):
                    parts.prepare(1)
        parts.close()
        # The slots' own function, which the patch replaced when the graph was made.
        parts = context.record_pausable(y, at_once=False)
        monkeypatch.setattr(full.device, "program", fail)
        with pytest.raises(OutOfMemory, match="no room"):
            parts.begin({})
        monkeypatch.undo()
        whole = context.record(y)
        needed = {name: inputs_of(2)[name] for name in whole.arrays}
        run = parts.begin(needed)
        run.advance(len(parts.costs)).wait()
        np.testing.assert_array_equal(run.result().wait()[0], whole.run(needed).wait()[0])
        parts.close()
        whole.close()


def attention(ctx, rng, tokens, *, causal=False, dtype=F32):
    q, k, v = (
        ctx.input(name, (2, tokens, heads, 32)) for name, heads in (("q", 4), ("k", 2), ("v", 2))
    )
    mode = "causal" if causal else None
    return q.scaled_dot_product_attention(
        k.cast(dtype=dtype), v.cast(dtype=dtype), scale=0.2, mask_mode=mode
    )


def product(ctx, rng, tokens, *, dtype=F32):
    return rows(rng, ctx, 40, 64, dtype=dtype).mulmat(ctx.input("x", (tokens, 64)))


def rows(rng, ctx, *shape, dtype):
    values = rng.standard_normal(shape, "f4")
    data = values if dtype == F32 else encode_blocks(dtype, values)
    spec = Spec.dense(shape, dtype)
    return leaf(spec, ctx._executor.weight(spec, memoryview(data.tobytes()), "weight"), ctx)


CUT = {
    "attention": attention,
    "causal attention": partial(attention, causal=True),
    "attention to f16": partial(attention, dtype=F16),
    "product": product,
    "product in 8 bits": partial(product, dtype=Q8_0),
}


@pytest.mark.parametrize("tokens", [1, 37, 70])
@pytest.mark.parametrize("kind", CUT)
def test_a_long_dispatch_in_several_gives_the_same_bits(any_gpu, monkeypatch, rng, kind, tokens):
    """On any device a dispatch is cut along an axis of its work groups, or stays whole."""
    for name in ("MOST_WORK", "MOST_WORK_OF_SOFTWARE"):
        monkeypatch.setattr(executor_module, name, 20_000)
    with Context(any_gpu) as ctx:
        y = CUT[kind](ctx, rng, tokens)
        whole, parts = ctx.record(y), ctx.record_pausable(y)
        given = {name: rng.standard_normal(a.shape, "f4") for name, a in whole.arrays.items()}
        [wanted] = whole.run(given).wait()
        run = parts.begin(given)
        for _ in parts.costs:
            # Other graphs run between two of them.
            run.advance(1).wait()
            outputs_of(any_gpu, 3)
        np.testing.assert_array_equal(run.result().wait()[0], wanted)
        more = len(parts.costs) - whole.dispatches
        cuts = "attention" in kind or any_gpu.capabilities.software
        assert more > 0 if cuts and tokens > 8 else more == 0
        # Each has its share of the cost, by which its time is predicted.
        assert max(cost for _, cost in parts.costs) <= max(cost for _, cost in whole.costs)
        whole.close()
        parts.close()
