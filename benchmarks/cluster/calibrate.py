"""Calibration: processes of this machine under load, against the simulation of the same requests.

Two workers have the bundled model on NumPy, by the clock of their processor time, since a machine
has other work. `benchmarks.cluster.stages` has a pipeline of two processes, and
`benchmarks.cluster.groups` the engine with stages that take a set time. Users never pause. They
and the simulated ones draw the same lengths of answers.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.cluster.profile import Clock, Profile, Submits, clock_of, measure, new_request
from benchmarks.cluster.simulate import Setup, percentile, simulate
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import open_worker

SLOTS, CONTEXT = 4, 512
PROMPTS = (32, 64, 128)
USERS = (2, 6, 12)
# Those of an engine whose requests are all of one kind. The model's context is short.
LOAD = Setup(
    2, 0, slots=SLOTS, system=64, answered=32, longest=256, turns=1, think=0.0, cached=0,
    seconds=14.0, warm=2.0,
)  # fmt: skip
HEAD = (
    "| | users | tokens/s | simulated | error | p95 of answers | simulated | error | load |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


class Node(NamedTuple):
    """An engine, and the clock by which it is measured."""

    engine: Submits
    clock: Clock


class Measured(NamedTuple):
    """Tokens per second of answers that ended, and the seconds that each of these took."""

    rate: float
    waits: Sequence[float]


def calibrate(seconds: float = LOAD.seconds) -> Iterator[str]:
    """Measure passes with both workers busy, then loads, and compare the simulation."""
    spec = LoadSpec(str(BUNDLED["story"]), "cpu", num_ctx=CONTEXT, num_parallel=SLOTS)
    setup = replace(LOAD, seconds=seconds)
    workers = [open_worker("story", spec, 256, lambda _: None) for _ in range(2)]
    try:
        nodes = [
            Node(worker.engine, clock_of(worker, "cpu")) for worker in workers if worker.engine
        ]
        yield HEAD
        before = measure_all(nodes)
        for users in USERS:
            found = load(nodes, replace(setup, users=users))
            after = measure_all(nodes)
            # Passes again, since processors are slower next to some jobs than to others.
            yield compare("two replicas", found, setup, users, Profile.middle(before, after))
            before = after
    finally:
        for worker in workers:
            worker.close()


def compare(name: str, found: Measured, load: Setup, users: int, profile: Profile) -> str:
    """Simulate a load, and format it next to the measurement."""
    own = simulate(replace(load, users=users), profile)
    rate, slow = own.ended_tokens / own.seconds, percentile(own.whole, 0.95)
    late = percentile(found.waits, 0.95)
    return (
        f"| {name} | {users} | {found.rate:.1f} | {rate:.1f} | {rate / found.rate - 1:+.0%} | "
        f"{late:.2f} s | {slow:.2f} s | {slow / late - 1:+.0%} | {os.getloadavg()[0]:.0f} |"
    )


def measure_all(nodes: Sequence[Node]) -> Profile:
    """Measure the passes of each node while the others do the same; return the mean of two."""
    found: list[Profile] = []
    at_once([lambda n=n: found.append(measure(*n, SLOTS, PROMPTS)) for n in nodes])
    return Profile.middle(found[0], found[-1])


def print_table(
    doc: str | None, run: Callable[[float], Iterator[str]], seconds: float = LOAD.seconds
) -> int:
    """Run a comparison as a command: print its table row by row, and return the exit code."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=seconds)
    options = parser.parse_args()
    print(HEAD)
    for line in run(options.seconds):
        print(line, flush=True)
    return 0


def at_once(acts: Sequence[Callable[[], object]]) -> None:
    """Act in threads, and wait for all."""
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def load(nodes: Sequence[Node], setup: Setup) -> Measured:
    """Have users ask, each the node that has its prefix, by the clocks of their nodes."""
    begins = [node.clock() for node in nodes]
    tokens = [0] * len(nodes)
    waits: list[float] = []
    lock = threading.Lock()

    def talk(user: int) -> None:
        at = user % len(nodes)
        (engine, clock), begin = nodes[at], begins[at]
        draw = random.Random(user)
        for length in setup.answers(user):
            start = clock() - begin
            if start > setup.seconds:
                return
            engine.submit(new_request(draw, setup.system, length)).result()
            end = clock() - begin
            with lock:
                if setup.warm <= end <= setup.seconds:
                    tokens[at] += length
                    if start >= setup.warm:
                        waits.append(end - start)

    at_once([lambda i=i: talk(i) for i in range(setup.users)])
    return Measured(sum(tokens) / (setup.seconds - setup.warm), waits)
