"""Measure the host time of a decode step by its dispatches, its parts, and the objects it creates.

::

    python benchmarks/host.py
    python benchmarks/host.py --layers 1,24 --steps 100 --json out.json
    python benchmarks/host.py --model model.gguf

The models are tiny ones of several layer counts, so that the device is done at once and the host
is what takes time; ``--model`` measures files instead. Each has a row for steps that are submitted
one by one and one for batches, as generations submit brief steps. Times are those of a step in the
median submit, waiting for the device left out. What a step is made of:

    exposed  of all, what comes before the submit: the device waits for that, the rest is hidden
    floor    what wgpu takes to record and submit as many dispatches of one small kernel, measured
             in turns with runs of steps: other tenants of a machine slow both
    cpu      of all, what the thread had a processor for: a rasteriser's threads may take it away
    inputs   arrays of the batch, slots in the cache
    write    the one write that brings them to the device
    encode   dispatches into a command buffer, of the step that follows
    finish   having wgpu check and translate the commands that are due, and handing them over
    rest     checks, and handing out the result

The last columns count buffers, pipelines and bind groups made by all these steps, and by a greedy
generation that keeps as many under way.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.builders import Dims, tiny_model
from tests.device.kernels import double, floats, shader
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.dawn import DawnCalls
from wgpu_backend.device.device import Device
from wgpu_backend.device.native import Native
from wgpu_backend.device.program import Program
from wgpu_backend.device.queue import Queue
from wgpu_backend.engine.batching import loop, pace
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import load
from wgpu_backend.engine.runner import BatchedSubmit, Head, Runner, Work
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.batch import BatchArrays
from wgpu_backend.ops.sampling.host import SamplingOptions

SEQUENCE = 0
WARM = 8
RUN = 12  # steps of a kind in turn: what comes between two of a kind leaves the next cold caches
MADE = ("buffers", "pipelines", "bind_groups")
PARTS = ("inputs", "write", "encode", "finish")
WATCHED: tuple[tuple[type, str, str], ...] = (
    (Runner, "batched_submit", "exposed"),
    (BatchedSubmit, "add", "exposed"),
    (BatchedSubmit, "submit", "exposed"),
    (Program, "prepare", "ahead"),
    (BatchArrays, "fill", "inputs"),
    (Queue, "write", "write"),
    (Native, "encode", "encode"),
    (Native, "finish", "finish"),
    (DawnCalls, "finish", "finish"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one model's decode step.

    Parameters
    ----------
    model : str
    layers, dispatches : int
        Of one step.
    together : int
        Steps of one submit.
    microseconds, least : float
        Host time of a step in the median submit and in the fastest.
    exposed, processor : float
        Of the median: what the device waits for, and processor time.
    floor : float
        Host time of recording and submitting as many dispatches of one small kernel.
    parts : dict of str to float
        What the median step spent it on, microseconds.
    made : dict of str to int
        Objects that all measured steps made together; 0 where they only replay.
    generated : dict of str to int
        The same of a greedy generation with steps under way, and how many tokens it had.
    """

    model: str
    layers: int
    dispatches: int
    together: int
    microseconds: float
    least: float
    exposed: float
    processor: float
    floor: float
    parts: dict[str, float]
    made: dict[str, int]
    generated: dict[str, int]


class Stopwatch:
    """A stopwatch that sums up the time spent in some methods."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(
        self, owner: type, method: str, part: str, clock: Callable[[], float] = time.perf_counter
    ) -> Iterator[None]:
        """Count a method of a class while the block runs."""
        act: Callable[..., Any] = getattr(owner, method)

        def counted(*args: object, **kwargs: object) -> object:
            begin = clock()
            try:
                return act(*args, **kwargs)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + clock() - begin

        setattr(owner, method, counted)
        try:
            yield
        finally:
            setattr(owner, method, act)

    @contextmanager
    def on_all(self) -> Iterator[None]:
        """Count all parts of a step while the block runs."""
        with ExitStack() as stack:
            for owner, method, part in WATCHED:
                stack.enter_context(self.on(owner, method, part))
            for owner, method, part in WATCHED:
                if part in ("exposed", "ahead"):
                    stack.enter_context(self.on(owner, method, "processor", time.thread_time))
            yield


class Steps:
    """Decode steps that all replay one recorded graph.

    Parameters
    ----------
    model : LanguageModel
    together : int
        Steps of one submit.
    """

    def __init__(self, model: LanguageModel, together: int) -> None:
        self._runner = model.runner
        self.together = together
        self._head = Head(
            f"host {together}",
            lambda _, hidden: [model.model.logits(hidden).argmax()],
            together,
        )
        self.rows: list[dict[str, float]] = []
        for _ in range(WARM):
            self.submit()

    def submit(self) -> None:
        """Submit steps once and wait for them."""
        batch = self._runner.batched_submit(self._head, self.together)
        for _ in range(self.together):
            batch.add([Work(SEQUENCE, (1,), (0,))], {})
        for result in batch.submit():
            result.wait()
        self._runner.cache.remove(SEQUENCE)

    def run(self, steps: int, watch: Stopwatch) -> None:
        """Measure steps."""
        for _ in range(0, steps, self.together):
            watch.seconds = {}
            self.submit()
            self.rows.append(_row({k: s / self.together for k, s in watch.seconds.items()}))


def measured(model: LanguageModel, name: str, steps: int) -> list[Measured]:
    """Time decode steps submitted one by one and in batches, in turns."""
    executor = model.backend.executor
    if not isinstance(executor, WgpuExecutor):
        sys.exit("host.py: needs a GPU adapter or a software rasteriser")
    device, watch = executor.device, Stopwatch()
    kinds = [Steps(model, 1), Steps(model, loop.TOGETHER)]
    before = asdict(device.counters)
    kinds[0].submit()
    dispatches = growth(before, device)["dispatches"]
    floor = same_dispatches(device, dispatches)
    before = asdict(device.counters)
    floors: list[float] = []
    with watch.on_all():
        for done in range(0, steps, RUN):
            for kind in kinds:
                kind.run(min(RUN, steps - done), watch)
            floors += [_floor(floor, watch) for _ in range(RUN)]
    made = growth(before, device)
    floor.close()
    return [
        _summary(model, name, kind, floors, dispatches, made, generated(model, device, steps, kind))
        for kind in kinds
    ]


def _floor(program: Program, watch: Stopwatch) -> float:
    """Measure the seconds of recording and submitting a program once."""
    watch.seconds = {}
    program.replay().wait()
    return watch.seconds["encode"] + watch.seconds["finish"]


def same_dispatches(device: Device, count: int) -> Program:
    """Make a program of many dispatches of one small kernel, ready to be replayed."""
    pipeline, a, b = device.pipeline(shader()), floats(device, 8), floats(device, 8)
    program = device.program([double(pipeline, a, b)] * count, reads=[Binding(b)])
    for _ in range(WARM):
        program.replay().wait()
    return program


def _row(seconds: Mapping[str, float]) -> dict[str, float]:
    """Make the figures of one step: its parts, and all of it."""
    parts = {part: seconds[part] for part in PARTS}
    total = seconds["exposed"] + seconds["ahead"]
    known = {"total": total, "exposed": seconds["exposed"], "processor": seconds["processor"]}
    return {**parts, "rest": total - sum(parts.values()), **known}


def generated(model: LanguageModel, device: Device, tokens: int, kind: Steps) -> dict[str, int]:
    """Count the objects that a generation creates if its graphs were recorded before."""
    before: dict[str, int] = {}
    count, pace.BRIEF_SECONDS = 0, math.inf if kind.together > 1 else 0.0
    for _ in range(2):
        before = asdict(device.counters)
        count = sum(1 for _ in model.tokens([1], SamplingOptions(temperature=0), tokens))
    return {"tokens": count, **{key: growth(before, device)[key] for key in MADE}}


def growth(before: dict[str, int], device: Device) -> dict[str, int]:
    """Return the growth of the device's counters."""
    return {key: value - before[key] for key, value in asdict(device.counters).items()}


def _summary(
    model: LanguageModel,
    name: str,
    kind: Steps,
    floors: Sequence[float],
    dispatches: int,
    made: dict[str, int],
    made_generating: dict[str, int],
) -> Measured:
    ordered = sorted(kind.rows, key=lambda row: row["total"])
    parts = {part: seconds * 1e6 for part, seconds in ordered[len(ordered) // 2].items()}
    total, exposed, processor = (parts.pop(key) for key in ("total", "exposed", "processor"))
    return Measured(
        name,
        len(model.model.cache_layers()),
        dispatches,
        kind.together,
        total,
        ordered[0]["total"] * 1e6,
        exposed,
        processor,
        sorted(floors)[len(floors) // 2] * 1e6,
        parts,
        {key: made[key] for key in MADE},
        made_generating,
    )


def synthetic(folder: Path, layers: int) -> Path:
    """Make a tiny model of so many layers."""
    return tiny_model(
        folder / f"layers-{layers}.gguf",
        "qwen2",
        "q8_0",
        dims=Dims(layers, context=512, head_dim=32),
    )


def table(results: Sequence[Measured]) -> str:
    """Format results in columns."""
    lines = [_cells(each) for each in results]
    rows = [list(lines[0]), *(list(line.values()) for line in lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    texts = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(texts)


def _cells(each: Measured) -> dict[str, str]:
    """Return the cells of one line of the table, by heading."""
    times = {
        "µs": each.microseconds,
        "least": each.least,
        "exposed": each.exposed,
        "cpu": each.processor,
        "floor": each.floor,
        **each.parts,
    }
    return {
        "model": each.model,
        "layers": str(each.layers),
        "dispatches": str(each.dispatches),
        "a submit": str(each.together),
        **{head: f"{microseconds:.0f}" for head, microseconds in times.items()},
        "made": str(sum(each.made.values())),
        "made generating": str(sum(each.generated[key] for key in MADE)),
    }


def fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """Fit start and slope of a line by least squares; None for a single place."""
    if len(set(x)) < 2:
        return None
    slope, start = np.polyfit(x, y, 1)
    return float(start), float(slope)


def findings(results: Sequence[Measured]) -> list[str]:
    """Summarise the results together."""
    made = sum(each.made[key] + each.generated[key] for each in results for key in MADE)
    lines = [f"buffers, pipelines and bind groups made by all steps: {made}"]
    for together in sorted({each.together for each in results}):
        kind = [each for each in results if each.together == together]
        lines += [f"{together} in a submit: {line}" for line in _lines(kind)]
    return lines


def _lines(results: Sequence[Measured]) -> Iterator[str]:
    """Summarise the results of one kind."""
    layers = [float(each.layers) for each in results]
    dispatches = [float(each.dispatches) for each in results]
    largest = max(results, key=lambda each: each.dispatches)
    ratio, count = largest.microseconds / largest.floor, largest.dispatches
    yield f"{ratio:.1f} times what wgpu takes for {count} dispatches of one small kernel"
    if line := fit(layers, dispatches):
        yield f"{line[1]:.2f} dispatches a layer and {line[0]:.1f} besides"
    if line := fit(dispatches, [each.least for each in results]):
        yield f"{line[0]:.0f} µs a step and {line[1]:.2f} µs a dispatch, by the fastest steps"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", default="1,2,4,8,16,24,32", help="of the tiny models")
    parser.add_argument("--model", nargs="+", type=Path, help="GGUF files instead")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    results: list[Measured] = []
    with tempfile.TemporaryDirectory() as name:
        counts = [int(each) for each in options.layers.split(",")]
        paths = options.model or [synthetic(Path(name), count) for count in counts]
        for path in paths:
            room = min(options.steps + 2, 256)
            with load(path, device=options.device or None, num_ctx=room) as model:
                if not results:
                    print(f"{model.device.name}, {model.device.driver}")
                results += measured(model, path.stem, options.steps)
    print(f"median of {options.steps} steps\n\n{table(results)}")
    print("\n" + "\n".join(findings(results)))
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
