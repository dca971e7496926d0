"""The times of a model's passes, as the simulator reads them: measured here, or predicted.

    python -m benchmarks.cluster.profile FILE.json [MODEL] [--device cpu] [--slots 4]

A worker process answers a few requests for each number of rows that its engine pads passes to: so
many answers at once, and prompts of so many tokens. On Linux its processor time is measured if the
device is the CPU, so that other work on the machine matters less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.engine.batching.generation import Generation
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.runner import bucket
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import WorkerModel, open_worker

# Tokens of the two answers whose difference is the time of steps.
SHORT, LONG = 8, 40
# Tokens of a prompt whose answer is measured.
BEFORE = 64
# Prompts that are measured, in tokens.
PROMPTS = (8, 16, 32, 64, 128, 256)
Clock = Callable[[], float]


class Submits(Protocol):
    """An engine, of this process or of another."""

    def submit(self, request: Request) -> Generation:
        """Begin a request."""
        ...


@dataclass(frozen=True, slots=True)
class Profile:
    """The seconds that one node with the whole model takes for passes.

    Parameters
    ----------
    steps : mapping of int to float
        By rows, a token of each answer: powers of two from 1 on.
    prompts : mapping of int to float
        Likewise, of passes with parts of prompts.
    hop : float
        From one node of a pipeline to another, with what the first node's host does for it.
    source : str
        Where the figures are from.
    """

    steps: Mapping[int, float]
    prompts: Mapping[int, float]
    hop: float = 0.0
    source: str = ""

    def seconds(self, rows: int, *, reading: bool) -> float:
        """Return the time of a pass of so many rows, padding included.

        Rows that were not measured take as long as the line through the nearest two has it.
        """
        known = self.prompts if reading else self.steps
        if rows in known:
            return known[rows]
        if len(known) == 1:
            return next(iter(known.values()))
        # The nearest two above, or the last two.
        ordered = sorted(known)
        at = min(sum(each < rows for each in ordered), len(ordered) - 1)
        low, high = ordered[max(at - 1, 0)], ordered[max(at, 1)]
        slope = (known[high] - known[low]) / (high - low)
        return max(0.0, known[low] + (rows - low) * slope)

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Read a profile that `write` wrote."""
        plain = json.loads(path.read_text("utf-8"))
        for name in ("steps", "prompts"):
            plain[name] = {int(rows): seconds for rows, seconds in plain[name].items()}
        return cls(**plain)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @classmethod
    def middle(cls, a: Profile, b: Profile) -> Profile:
        """Return the mean of two measurements of the same rows."""
        pairs = [(a.steps, b.steps), (a.prompts, b.prompts)]
        steps, prompts = ({n: (one[n] + two[n]) / 2 for n in one} for one, two in pairs)
        return cls(steps, prompts, (a.hop + b.hop) / 2, a.source)


def processor_clock(pid: int) -> Clock:
    """Return the clock of a process: seconds that processors have worked for it (Linux)."""
    # As clock_getcpuclockid(3) makes it from a process's number.
    number = (~pid << 3) | 2
    return lambda: time.clock_gettime(number)


def clock_of(worker: WorkerModel, device: str) -> Clock:
    """Return the clock by which a worker's passes are measured."""
    return processor_clock(worker.pid) if sys.platform == "linux" and device == "cpu" else wall


def wall() -> float:
    """Return the seconds of the machine's clock."""
    return time.perf_counter()


def new_request(draw: random.Random, prompt: int, tokens: int) -> Request:
    """Make a request whose prompt no cache has."""
    ids = [draw.randrange(5, 90) for _ in range(prompt)]
    return Request.of(ids, max_tokens=tokens, ignore_eos=True, options={"temperature": 0})


def measure_step(engine: Submits, clock: Clock, count: int, rounds: int = 3) -> float:
    """Return the seconds of a step of so many answers."""

    def timed(tokens: int) -> float:
        return time_answers(engine, clock, count, BEFORE, tokens)

    found = [timed(LONG) - timed(SHORT) for _ in range(rounds)]
    return max(0.0, median(found) / (LONG - SHORT))


def time_answers(engine: Submits, clock: Clock, count: int, prompt: int, tokens: int) -> float:
    """Return the seconds of so many answers at once."""
    draw = random.Random(f"{time.perf_counter()}")
    begin = clock()
    made = [engine.submit(new_request(draw, prompt, tokens)) for _ in range(count)]
    for each in made:
        each.result()
    return clock() - begin


def measure(
    engine: Submits, clock: Clock, slots: int, prompts: tuple[int, ...] = PROMPTS, rounds: int = 3
) -> Profile:
    """Measure the passes of an engine that nobody else uses."""
    rows = [1 << n for n in range(bucket(slots).bit_length())]
    for count in rows:
        # The first pass of each shape records a graph.
        time_answers(engine, clock, min(count, slots), BEFORE, SHORT)
    # Those of the first round record graphs.
    reads = [
        [time_answers(engine, clock, 1, each, 1) for each in prompts] for _ in range(rounds + 1)
    ]
    return Profile(
        {count: measure_step(engine, clock, min(count, slots), rounds) for count in rows},
        {each: median(row[at] for row in reads[1:]) for at, each in enumerate(prompts)},
    )


def main() -> int:
    """Measure a model, and write its profile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("model", nargs="?", default=str(BUNDLED["story"]))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--slots", type=int, default=4)
    asked = parser.parse_args()
    context = max(PROMPTS) + BEFORE + LONG
    spec = LoadSpec(asked.model, asked.device, num_ctx=context, num_parallel=asked.slots)
    worker = open_worker("profile", spec, context, lambda _: None)
    try:
        assert worker.engine is not None
        found = measure(worker.engine, clock_of(worker, asked.device), asked.slots)
        name = f"{Path(asked.model).name} on {asked.device}, load {os.getloadavg()[0]:.0f}"
        Profile(found.steps, found.prompts, source=f"{name}, measured").write(asked.file)
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
