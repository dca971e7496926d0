# ruff: noqa: ANN401  # it stands in for objects of other rooms
"""Two real processes as a pipeline under load, against the simulation of the same requests.

    python -m benchmarks.cluster.stages [--seconds 14]

The engine, with the first half of the bundled model's layers, is in this process; a stage in
another one has the last half. Both compute, on NumPy. Time is the processor time of this process;
where it waits for a run of the stage, the clock goes on to the end of that, which began when the
stage was free and took its processor time. So other programs on the machine do not count, and both
processes work at once as they would with a core each.

The simulation has the passes of the whole model in one process, measured by the same clock, and as
a hop half of what a token of a request alone takes longer in the pipeline.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import wgpu_backend
from benchmarks.cluster.calibrate import CONTEXT, LOAD, PROMPTS, Measured, compare, print_table
from benchmarks.cluster.groups import Clock, load
from benchmarks.cluster.pipeline import node
from benchmarks.cluster.profile import Profile, measure, measure_step, processor_clock
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.engine.batching import loop, pace
from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.ml.backend import BackendParams
from wgpu_backend.ml.placement import Placement
from wgpu_backend.server.cluster.stages import open_stage
from wgpu_backend.server.worker.messages import StageSpec

NAMES = ("cpu", "cpu@second")
LAYERS = (0, 0, 0, 1, 1, 1)
USERS = (2, 5, 8)
SETUP = replace(LOAD, depth=2)
# Clocks of requests that nobody asks again after.
NOBODY = -1 << 30


class ProcessorClock(Clock):
    """The processor time of this process, and what it waited for the stage."""

    def __init__(self) -> None:
        self._waited = 0.0
        super().__init__()
        self.asking = NOBODY

    @property
    def now(self) -> float:
        """The time."""
        return time.process_time() + self._waited

    @now.setter
    def now(self, value: float) -> None:
        self._waited = value - time.process_time()


@dataclass
class _Arrived:
    """Values of the stage that are known from a time on."""

    values: Any
    ready: float
    clock: Clock

    def wait(self) -> Any:
        """Let the clock go on to that time, and return them."""
        self.clock.sleep(max(0.0, self.ready - self.clock.now))
        return self.values


class _Recorded:
    """A graph of the stage whose runs take their processor time there."""

    def __init__(self, inner: Any, stage: TimedStage) -> None:
        self._inner, self._stage = inner, stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def replay(self) -> _Arrived:
        """Run now, and return values that arrive when the stage would have them."""
        stage = self._stage
        begin, before = stage.clock.now, stage.spent()
        values = self._inner.replay().wait()
        stage.ready = max(stage.ready, begin) + stage.spent() - before
        return _Arrived(values, stage.ready, stage.clock)


class TimedStage:
    """A stage in another process, by its processor time."""

    def __init__(self, spec: StageSpec, clock: Clock, params: BackendParams) -> None:
        self._inner = open_stage(spec, params)
        self.spent = processor_clock(self._inner.link.pid)
        self.clock, self.ready = clock, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def record(self, *outputs: Any, **options: Any) -> _Recorded:
        """Record a graph on the stage."""
        return _Recorded(self._inner.record(*outputs, **options), self)


def run(seconds: float = LOAD.seconds) -> Iterator[str]:
    """Measure passes of one process, then loads of two, and compare the simulation."""
    path, clock = str(BUNDLED["story"]), ProcessorClock()
    with ExitStack() as stack:
        spec = stack.enter_context(node(path, "cpu"))
        spec = replace(spec, id=NAMES[1])
        for module in (loop, pace):
            stack.enter_context(patch.object(module, "time", clock))
        openers: Any = {spec.id: partial(TimedStage, spec, clock)}
        options: dict[str, Any] = {"num_ctx": CONTEXT, "num_parallel": SETUP.seats}
        placed = Placement(NAMES, LAYERS, 0, 1)
        engines = [
            stack.enter_context(Engine(stack.enter_context(model)))
            for model in (
                wgpu_backend.load(path, device="cpu", **options),
                wgpu_backend.load(path, placement=placed, openers=openers, **options),
            )
        ]
        one, two = engines

        def read() -> float:
            return clock.now

        def profile() -> Profile:
            found = measure(one, read, SETUP.seats, PROMPTS)
            longer = measure_step(two, read, 1) - found.steps[1]
            return replace(found, hop=max(0.0, longer / 2))

        clock.engine = two
        before, measured = profile(), dict[int, Measured]()
        setup = replace(SETUP, seconds=seconds)
        for users in USERS:
            clock.note(asked=two._core.totals.finished - clock.asked)
            measured[users] = load(two, clock, replace(setup, users=users))
            clock.asking = NOBODY
        # Passes again, since processors are slower next to some jobs than to others.
        middle = Profile.middle(before, profile())
        for users, found in measured.items():
            yield compare("pipeline of two", found, setup, users, middle)
        yield ""
        yield (
            f"Passes of a row took {1000 * middle.steps[1]:.1f} ms in one process, of "
            f"{SETUP.seats} rows {1000 * middle.steps[SETUP.seats]:.1f} ms; a hop "
            f"{1000 * middle.hop:.2f} ms."
        )


if __name__ == "__main__":
    sys.exit(print_table(__doc__, run))
