"""The engine on devices that take a set time, by a clock of its own, against the simulation.

    python -m benchmarks.cluster.groups [--seconds 60]

The real engine plans, submits and reads passes. Only time is not real: a pass takes a base time and
as much for each row, and the clock goes on where the engine waits for a device. So the host takes
no time, the machine's other work does not matter, and each run gives the same result. Rows are one
node, and pipelines with one group of requests and with several.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import wgpu_backend
from benchmarks.cluster.calibrate import Measured, at_once, compare, print_table
from benchmarks.cluster.profile import Profile, new_request
from benchmarks.cluster.simulate import Setup
from tests.builders import Dims, tiny_model
from tests.engine import test_groups
from tests.engine.test_groups import SlowDevice
from wgpu_backend.engine.batching import loop, pace
from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.batching.pace import Groups
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.ml.placement import Placement

# Seconds of the whole model for a pass, and for each of its rows.
EACH = 0.04
ROWS = [1 << n for n in range(9)]
PROFILE = Profile(times := {rows: EACH * (1 + rows) for rows in ROWS}, times)
LOAD = Setup(
    1, 0, slots=8, system=8, answered=16, longest=64, turns=1, think=0.0, cached=0, warm=10.0
)
_TWO = replace(LOAD, nodes=2, depth=2, slots=4)
KINDS = {
    "one node": LOAD,
    "two, one group": replace(_TWO, groups=1),
    "two, several groups": _TWO,
    "three, several groups": replace(LOAD, nodes=3, depth=3, slots=3),
}
LAYERS, USERS = 6, (2, 5, 8)
SECONDS = 60.0
# Until a run counts as broken: real seconds that a user may take to ask again.
PATIENCE = 120.0


class Clock:
    """A clock that goes on while the engine waits for a device, once all users have asked.

    Attributes
    ----------
    asking : int
        Users who go on asking.
    asked : int
        Their requests so far.
    """

    def __init__(self) -> None:
        self.now, self.asking, self.asked = 0.0, 0, 0
        self._changed = threading.Condition()
        self.engine: Engine | None = None

    def perf_counter(self) -> float:
        """Return the time."""
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        """Go on by so many seconds, after those whose answers ended have asked again."""
        assert self.engine is not None
        totals = self.engine._core.totals

        def all_asked() -> bool:
            return self.asked - totals.finished >= self.asking

        with self._changed:
            assert self._changed.wait_for(all_asked, PATIENCE), "a user did not ask again"
            self.now += seconds

    def note(self, *, asked: int = 0, gone: int = 0) -> None:
        """Note that a user has asked, or will ask no more."""
        with self._changed:
            self.asked += asked
            self.asking -= gone
            self._changed.notify_all()


def load(engine: Engine, clock: Clock, setup: Setup) -> Measured:
    """Have users ask who never pause, until the clock shows the end."""
    tokens: list[int] = []
    waits: list[float] = []
    clock.asking, begin = setup.users, clock.now

    def talk(user: int) -> None:
        draw = random.Random(user)
        for length in setup.answers(user):
            start = clock.now - begin
            if start > setup.seconds:
                break
            made = engine.submit(new_request(draw, setup.system, length))
            clock.note(asked=1)
            made.result()
            end = clock.now - begin
            if setup.warm <= end <= setup.seconds:
                tokens.append(length)
                if start >= setup.warm:
                    waits.append(end - start)
        clock.note(gone=1)

    at_once([lambda i=i: talk(i) for i in range(setup.users)])
    return Measured(sum(tokens) / (setup.seconds - setup.warm), waits)


def open_stages(path: Path, setup: Setup) -> LanguageModel:
    """Open a model with equal shares of the layers on devices of several nodes."""
    # The first of two devices has no layers where there is one node.
    count = max(2, setup.depth)
    names = ["cpu", *(f"cpu@10.0.0.{at}:7" for at in range(1, count))]
    layers = tuple(count - setup.depth + at * setup.depth // LAYERS for at in range(LAYERS))
    devices = [SlowDevice() for _ in names]
    openers: Any = {
        name: lambda _, device=device: device for name, device in zip(names, devices, strict=True)
    }
    placement = Placement(tuple(names), layers, layers[0], count - 1)
    model = wgpu_backend.load(
        path, num_ctx=128, num_parallel=setup.seats, placement=placement, openers=openers
    )
    for device in devices:
        # Each takes half of what it is told, for a pass and for each row.
        device.seconds, device.devices = 2 * EACH / setup.depth, devices
    return model


def measure(path: Path, setup: Setup) -> Measured:
    """Run the engine for a setup: one node or a pipeline of `depth` of them."""
    clock = Clock()
    with ExitStack() as stack:
        for module in (loop, pace, test_groups):
            stack.enter_context(patch.object(module, "time", clock))
        model = stack.enter_context(open_stages(path, setup))
        clock.engine = engine = stack.enter_context(Engine(model))
        engine._core._groups = Groups(setup.groups or setup.depth)
        return load(engine, clock, setup)


def make_model(folder: Path) -> Path:
    """Write a tiny model into a folder."""
    return tiny_model(folder / "tiny.gguf", dims=Dims(layers=LAYERS), tied=True)


def run(seconds: float = SECONDS) -> Iterator[str]:
    """Measure one node and pipelines, and compare the simulation."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_model(Path(folder))
        for name, kind in KINDS.items():
            setup = replace(kind, seconds=seconds)
            for users in USERS:
                found = measure(path, replace(setup, users=users))
                yield compare(name, found, setup, users, PROFILE)


if __name__ == "__main__":
    sys.exit(print_table(__doc__, run, SECONDS))
