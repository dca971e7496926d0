"""The device takes the tokens that the NumPy sampler takes, draw by draw."""

import itertools

import numpy as np
import pytest

from wgpu_backend.dtypes import I32
from wgpu_backend.engine.step_sampler import (
    DRAWS,
    HISTORY,
    NEUTRAL,
    NOWHERE,
    SAMPLING,
    build,
    check_tokens,
)
from wgpu_backend.errors import BackendError
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.sampling.host import Plan, Sampler, SamplingOptions, plan

VOCAB = 5000
ROWS = 64
# One graph serves each list: options of many users at once, a row each.
OPTIONS = {
    "greedy": [{"temperature": 0.0}, {"top_k": 1}],
    "64 candidates": [
        {},
        {"temperature": 1.0, "top_k": 64, "top_p": 1.0},
        {"temperature": 0.3},
        {"temperature": 5.0, "top_p": 0.99},
        {"top_p": 0.5},
        {"top_p": 0.0},
        {"min_p": 0.05, "top_p": 1.0},
        {"min_p": 1.0},
        {"temperature": 0.0},
    ],
    "256 candidates": [
        {"temperature": 1.0, "top_k": 256, "top_p": 1.0},
        {"temperature": 1.3, "top_k": 200, "top_p": 0.95, "min_p": 0.01},
        {"temperature": 1e-6, "top_k": 256},
        {},
    ],
    "penalties": [
        {"repeat_penalty": 1.1},
        {"repeat_penalty": 1.37, "presence_penalty": 0.3, "frequency_penalty": 0.7},
        {"frequency_penalty": 1.9, "repeat_last_n": 3, "temperature": 1.0},
        {"presence_penalty": 5.0, "temperature": 0.0},
        {},
    ],
    "long histories": [
        {"repeat_penalty": 1.2, "frequency_penalty": 0.1, "repeat_last_n": 300},
        {"presence_penalty": -0.4, "repeat_last_n": 1024},
    ],
}
KINDS = {
    "random": lambda rng, shape: rng.normal(size=shape) * 2,
    "peaked": lambda rng, shape: np.sort(rng.exponential(size=shape) ** 2 * 4),
    "flat": lambda rng, shape: np.round(rng.normal(size=shape)) / 4,
}


def inputs(samplers, histories, slots, plan, rows=0):
    """Inputs of one step; draws a random number from each sampler."""
    count = max(rows, len(samplers))
    sampling = np.tile(NEUTRAL, (count, 1))
    draws = np.tile(np.array([0, NOWHERE], np.uint32), (count, 1))
    history = np.full((count, plan.history), -1, np.int32)
    for row, (sampler, seen) in enumerate(zip(samplers, histories, strict=True)):
        sampling[row] = sampler.sampling.array()
        draws[row] = sampler.draw(), slots[row]
        recent = sampler.recent(seen)
        history[row, : len(recent)] = recent
    values = {SAMPLING: sampling, DRAWS: draws}
    return {**values, HISTORY: history} if plan.history else values


@pytest.fixture(scope="module", params=["cpu", "full", "baseline"])
def executor(request):
    if request.param == "cpu":
        return make_executor("cpu", BackendParams())
    return request.getfixturevalue("executors")(request.param)


def seats(options, seed):
    """A sampler for each row."""
    every = itertools.islice(itertools.cycle(options), ROWS)
    return [
        Sampler(SamplingOptions(**chosen, seed=seed + row), VOCAB)
        for row, chosen in enumerate(every)
    ]


@pytest.mark.parametrize(
    "name",
    OPTIONS,
)
def test_the_device_takes_the_tokens_of_the_host(executor, rng, name):
    assert_same_tokens(executor, rng, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greedy", "penalties"])
def test_kernels_for_hardware_take_them_too(executors, rng, name):
    assert_same_tokens(executors("wide"), rng, name)


def assert_same_tokens(executor, rng, name):
    options = OPTIONS[name]
    shared = Plan.merge(plan(SamplingOptions(**chosen)) for chosen in options)
    on_device, on_host = seats(options, 9), seats(options, 9)
    histories = [rng.integers(0, 30, 290).tolist() for _ in range(ROWS)]
    with Context(executor) as context:
        logits = context.input("logits", (ROWS, VOCAB))
        recorded = context.record(build(context, logits, shared, places(context)))
        for kind in [*KINDS] * 4:
            values = KINDS[kind](rng, (ROWS, VOCAB)).astype(np.float32)
            step = inputs(on_device, histories, range(ROWS), shared)
            [tokens] = recorded.run({"logits": values, **step}).wait()

            rows = zip(on_host, values, histories, strict=True)
            expected = [sampler.sample(row, seen) for sampler, row, seen in rows]
            assert expected == check_tokens(tokens[:ROWS]), kind
            for history, token in zip(histories, expected, strict=True):
                history.append(token)
        recorded.close()


@pytest.mark.slow
def test_frequencies_on_the_device_follow_the_softmax(full, rng):
    # 40 equal rows, sampled with seeds of their own; 39 degrees of freedom, 99.99 %.
    logits = rng.normal(size=40).astype(np.float32)
    options = SamplingOptions(temperature=1.0, top_p=1.0, top_k=40)
    samplers = [
        Sampler(SamplingOptions(temperature=1.0, top_p=1.0, top_k=40, seed=s), 40)
        for s in range(512)
    ]
    seen = np.zeros(40)
    with Context(full) as context:
        kept = context.state((512,), I32)
        chosen = build(context, context.input("logits", (512, 40)), plan(options), kept)
        recorded = context.record(chosen)
        for _ in range(40):
            step = inputs(samplers, [()] * 512, range(512), plan(options))
            [tokens] = recorded.run({"logits": np.tile(logits, (512, 1)), **step}).wait()
            seen += np.bincount(tokens, minlength=40)
        recorded.close()

    powers = np.exp(logits.astype(np.float64))
    expected = powers / powers.sum() * 512 * 40
    assert np.sum((seen - expected) ** 2 / expected) < 80


def places(context, count=ROWS + 4):
    return context.state((count,), I32)


def test_rows_behind_the_last_sequence_choose_for_nobody(full, rng):
    values = rng.normal(size=(4, 300)).astype(np.float32)
    wanted = plan(SamplingOptions(repeat_penalty=1.1))
    samplers = [Sampler(SamplingOptions(seed=1), 300)]
    with Context(full) as context:
        logits = context.input("logits", (4, 300))
        recorded = context.record(build(context, logits, wanted, places(context, 9)))
        step = inputs(samplers, [[5]], [6], wanted, rows=4)
        [tokens] = recorded.run({"logits": values, **step}).wait()
        recorded.close()

    expected = Sampler(SamplingOptions(seed=1), 300).sample(values[0], [5])
    assert tokens.tolist() == [0] * 6 + [expected, 0, 0]


def test_a_token_on_the_device_is_penalised_like_one_the_host_knows(executor, rng):
    options = SamplingOptions(temperature=0.0, presence_penalty=100.0, repeat_penalty=1.0)
    values = rng.normal(size=(1, 300)).astype(np.float32)
    sampler, wanted = Sampler(options, 300), plan(options)
    with Context(executor) as context:
        logits = context.input("logits", (1, 300))
        recorded = context.record(build(context, logits, wanted, places(context, 4)))
        found = []
        for place, history in enumerate([[], [-2], [-2, -3], [-3, -2, -4]]):
            step = inputs([sampler], [history], [place], wanted)
            [tokens] = recorded.run({"logits": values, **step}).wait()
            found.append(int(tokens[place]))
        recorded.close()

    assert found == np.argsort(-values[0])[:4].tolist()


def test_a_graph_is_not_built_for_the_host(full):
    with Context(full) as context, pytest.raises(BackendError, match="sampled on the host"):
        build(context, context.zeros(1, 9), plan(SamplingOptions(top_k=0)), places(context))


def test_a_row_without_a_token_is_named():
    assert check_tokens(np.array([3, 0], np.int32)) == [3, 0]
    with pytest.raises(BackendError, match="logit of row 1 is not finite"):
        check_tokens(np.array([3, -1], np.int32))
