"""Calibration: two processes of the bundled model under load, against the simulation.

First both have the whole model; then one has the first half of the layers and the engine, and the
other the second half.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from benchmarks.cluster.pipeline import node
from benchmarks.cluster.simulate import Costs, Setup, percentile, simulate
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.server.worker.messages import LoadSpec, PipelineSpec
from wgpu_backend.server.worker.remote import WorkerModel, open_worker

SLOTS, CONTEXT = 4, 512
# Tokens of a prompt; those of an answer have this mean and end, as the model's context is short.
PROMPT, ANSWER, LONGEST = 64, 48, 384
MANY = 256  # tokens of the prompt that is measured
USERS = (2, 6, 12)
SECONDS, WARM = 12.0, 2.0
# From one process to the other, as `benchmarks.cluster.pipeline` measures it.
HOP = 0.0002


def calibrate() -> Iterator[str]:
    """Measure stage times with both workers busy, then loads, and compare the simulation."""
    spec = LoadSpec(str(BUNDLED["story"]), "cpu", num_ctx=CONTEXT, num_parallel=SLOTS)
    workers = [open_worker("story", spec, 256, lambda _: None) for _ in range(2)]
    try:
        costs = measure(workers)
        times = f"base {costs.base:.5f}, each {costs.each:.5f}, token {costs.token:.6f}"
        yield f"stage times, s: {times}"
        yield "| users | tokens/s | simulated | error | p95 whole, s | simulated | error |"
        yield "|---:|---:|---:|---:|---:|---:|---:|"
        for users in USERS:
            # Stage times again, since other jobs of the machine come and go.
            before = measure(workers)
            rate, slow = load(workers, users)
            after = measure(workers)
            yield compare(users, rate, slow, middle(before, after))
    finally:
        for worker in workers:
            worker.close()
    yield from calibrate_pipeline(spec)


def calibrate_pipeline(spec: LoadSpec) -> Iterator[str]:
    """Measure loads of a pipeline of two processes, and stage times of one with the whole model."""
    with node(spec.path, "cpu") as stage, open_gguf(spec.path) as file:
        layers = file.config.uint("block_count")
        halves = tuple(2 * layer // layers for layer in range(layers))
        pipeline = PipelineSpec(("cpu", stage.id), halves, (stage,))
        whole = open_worker("whole", spec, 256, lambda _: None)
        both = open_worker("pipeline", replace(spec, pipeline=pipeline), 256, lambda _: None)
        try:
            # Graphs are recorded when they are first needed.
            own = measure([both])
            times = f"base {own.base:.5f}, each {own.each:.5f}, token {own.token:.6f}"
            yield f"pipeline of two: stage times as a whole, s: {times}"
            for users in USERS[:2]:
                before = measure([whole])
                rate, slow = load([both], users)
                yield compare(users, rate, slow, middle(before, measure([whole])), depth=2)
        finally:
            both.close()
            whole.close()


def middle(a: Costs, b: Costs) -> Costs:
    """Return the mean of two measurements."""
    return Costs((a.base + b.base) / 2, (a.each + b.each) / 2, (a.token + b.token) / 2, 0.0)


def compare(users: int, rate: float, slow: float, costs: Costs, depth: int = 1) -> str:
    """Simulate a load, and format it next to the measurement."""
    costs = replace(costs, hop=HOP if depth > 1 else 0.0)
    setup = Setup(
        2, users, depth=depth, slots=SLOTS // depth, chunk=PROMPT, system=PROMPT, answered=ANSWER,
        turns=1, think=0.0, cached=0, seconds=60.0, warm=10.0, routing="prefix",
    )  # fmt: skip
    found = [simulate(replace(setup, seed=seed), costs) for seed in range(5)]
    own = median(each.throughput for each in found)
    late = median(percentile(each.whole, 0.95) for each in found)
    return (
        f"| {users} | {rate:.0f} | {own:.0f} | {own / rate - 1:+.0%} | {slow:.2f} | {late:.2f} | "
        f"{late / slow - 1:+.0%} |"
    )


def measure(workers: Sequence[WorkerModel]) -> Costs:
    """Measure the stage times of one worker while the others do the same."""
    found: list[Costs] = []

    def one(worker: WorkerModel, number: int) -> None:
        base = _step(worker, 1, number)
        full = _step(worker, SLOTS, number)
        each = max(0.0, (full - base) / (SLOTS - 1))
        start = _timed(lambda: _answers(worker, 1, MANY, 1, number))
        found.append(Costs(max(0.0, base - each), each, max(1e-7, (start - base) / MANY), 0.0))

    _at_once([lambda w=w, i=i: one(w, i) for i, w in enumerate(workers)])
    return Costs(
        *(median(getattr(c, name) for c in found) for name in ("base", "each", "token")), 0.0
    )


def _step(worker: WorkerModel, count: int, salt: int) -> float:
    """Return the seconds of a step of so many sequences: two lengths of answer, apart."""
    short, long = 16, 80
    times = [_timed(lambda n=n: _answers(worker, count, 8, n, salt)) for n in (short, long) * 2]
    return (sum(times[1::2]) - sum(times[::2])) / 2 / (long - short)


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def _at_once(acts: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _answers(worker: WorkerModel, count: int, prompt: int, tokens: int, salt: int) -> None:
    """Run so many answers at once, each to a prompt that no cache has."""
    assert worker.engine is not None
    draw = random.Random(f"{salt} {time.perf_counter()}")
    made = [worker.engine.submit(_request(draw, prompt, tokens)) for _ in range(count)]
    for each in made:
        each.result()


def _request(draw: random.Random, prompt: int, tokens: int) -> Request:
    ids = [draw.randrange(5, 200) for _ in range(prompt)]
    return Request.of(ids, max_tokens=tokens, ignore_eos=True)


def load(workers: Sequence[WorkerModel], users: int) -> tuple[float, float]:
    """Return the tokens per second and the p95 of answers, of users who never pause."""
    busy = [0] * len(workers)
    lock, begin = threading.Lock(), time.perf_counter()
    tokens: list[int] = []
    waits: list[float] = []

    def talk(number: int) -> None:
        draw = random.Random(number)
        while (start := time.perf_counter()) < begin + SECONDS:
            length = min(1 + int(draw.expovariate(1 / ANSWER)), LONGEST)
            with lock:
                chosen = min(range(len(workers)), key=busy.__getitem__)
                busy[chosen] += 1
            engine = workers[chosen].engine
            assert engine is not None
            engine.submit(_request(draw, PROMPT, length)).result()
            end = time.perf_counter()
            with lock:
                busy[chosen] -= 1
                if begin + WARM <= end <= begin + SECONDS:
                    tokens.append(length)
                    waits.append(end - start)

    _at_once([lambda i=i: talk(i) for i in range(users)])
    return sum(tokens) / (SECONDS - WARM), percentile(waits, 0.95)
