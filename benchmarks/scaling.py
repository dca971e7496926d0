"""Measure how cost grows with the prompt, the context and the number of sequences.

::

    python benchmarks/scaling.py
    python benchmarks/scaling.py model.gguf --longest 32768 --budget 1200 \
        --json scaling.json --plot scaling.svg
    python benchmarks/scaling.py model.gguf --only "decode step" --longest 4096 --budget 60

Four sweeps, each by doubling: a decode step, and a part of a prompt, after a context that grows; a
decode step of several sequences; and a whole prompt into an empty cache. A context is made by
taking places in the cache without computing what belongs there, which costs attention the same.

The exponent is the slope over the last points on logarithmic scales. All but the whole prompt,
whose attention is quadratic, are linear at most; steeper sweeps are listed below the tables and
make the exit code 1. A sweep ends where its next point would not fit into its share of
``--budget``. For a decode step the cost after 4096 positions relative to 256 is shown as well: at
most 2 is the aim for models of half a billion weights and more; with fewer, attention is most of a
step.

A software rasteriser computes in this process, so there the processor time of the process is taken,
which hardly depends on other load; on other devices the wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.plot import Series, lines, picture
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import load
from wgpu_backend.engine.runner import CHUNK, Head, Work
from wgpu_backend.nn.kvcache.paged import PagedCache

FITTED = 4  # points that the exponent is taken from: half of what a sweep costs lies in the last
NOISE = 0.2  # how far above its limit an exponent is still no finding
ROUNDS = 20
LONG = 10.0  # seconds compared with which recording graphs does not count
CONTEXT_OF_A_BATCH = 256
STEP = "decode step"
NEAR, FAR = 256, 4096  # positions after which a step is compared


@dataclass(frozen=True, slots=True)
class Point:
    """One size, and the least cost of some runs.

    Parameters
    ----------
    size : int
    seconds, host_seconds : float
        Of the run; what the host took on the wall until its passes were submitted.
    """

    size: int
    seconds: float
    host_seconds: float


@dataclass(slots=True)
class Sweep:
    """Sizes that double, and their costs.

    Parameters
    ----------
    name, x : str
        What is measured; what its size counts.
    sizes : sequence of int
    run : callable
        Does the work of a size and gives what is to be timed.
    limit : int
        Largest exponent that the algorithm has.
    points : list of Point
    """

    name: str
    x: str
    sizes: Sequence[int]
    run: Callable[[int], Callable[[], None]]
    limit: int
    points: list[Point] = field(default_factory=list[Point])

    @property
    def exponent(self) -> float | None:
        """Return the slope of the last points on logarithmic scales; None for too few points."""
        last = self.points[-FITTED:]
        if len(last) < FITTED:
            return None
        logarithms = np.log([[p.size, p.seconds] for p in last])
        return float(np.polyfit(logarithms[:, 0], logarithms[:, 1], 1)[0])

    @property
    def growth(self) -> float | None:
        """Return the cost of a step after FAR positions relative to NEAR; None if unknown."""
        taken = {p.size: p.seconds for p in self.points}
        if self.name != STEP or not taken.keys() >= {NEAR, FAR}:
            return None
        return taken[FAR] / taken[NEAR]

    @property
    def too_steep(self) -> bool:
        """Return whether it grows faster than the algorithm."""
        return self.exponent is not None and self.exponent > self.limit + NOISE


@dataclass(frozen=True, slots=True)
class Meter:
    """A meter of runs: seconds so far, and the host's share."""

    clock: Callable[[], float]
    host: Callable[[], float]

    def timed(self, run: Callable[[], None]) -> tuple[float, float]:
        """Return the seconds of a run, and the host's share."""
        before, begin = self.host(), self.clock()
        run()
        return self.clock() - begin, self.host() - before


class Model:
    """The work of each sweep, for one model.

    Parameters
    ----------
    model : LanguageModel
    longest, sequences : int
        Ends of the sweeps.
    """

    def __init__(self, model: LanguageModel, longest: int, sequences: int) -> None:
        self._model, self._runner, self._cache = model, model.runner, model.cache
        self._head = Head("scaling", lambda _, hidden: [model.model.logits(hidden).argmax()])
        self._tokens = np.random.default_rng(0).integers(0, model.vocabulary, longest).tolist()
        self._longest, self._most = longest, sequences

    def sweeps(self) -> list[Sweep]:
        """List all sweeps."""
        part = min(self._runner.chunk, self._longest)
        whole = doubled(1, self._longest)
        return [
            Sweep(STEP, "positions", whole, self._step, 1),
            Sweep("sequences in a step", "sequences", doubled(1, self._most), self._batch, 1),
            Sweep(
                f"{part} tokens of a prompt",
                "positions that they see on average",
                doubled(part, self._longest),
                lambda size: self._part(size, part),
                1,
            ),
            Sweep("whole prompt", "tokens", whole, self._prompt, 2),
        ]

    @staticmethod
    def positions(longest: int, sequences: int) -> int:
        """Return the positions that the cache must hold."""
        return max(longest + CHUNK, sequences * CONTEXT_OF_A_BATCH)

    def host_seconds(self) -> float:
        """Return the host's seconds so far."""
        return self._runner.clock.host

    def _behind(self, contexts: Sequence[int], tokens: int) -> Callable[[], None]:
        """Make a pass with so many tokens per sequence, after a context that is not computed."""
        for sequence in range(self._most):
            self._cache.remove(sequence)
        assert isinstance(self._cache, PagedCache)
        for sequence, context in enumerate(contexts):
            self._cache.extend(sequence, context)
        works = [Work(s, self._tokens[:tokens], (tokens - 1,)) for s in range(len(contexts))]

        def run() -> None:
            self._runner.run(works, self._head, {}).wait()
            for sequence, context in enumerate(contexts):
                self._cache.remove(sequence, context)

        return run

    def _step(self, positions: int) -> Callable[[], None]:
        return self._behind([positions - 1], 1)

    def _batch(self, sequences: int) -> Callable[[], None]:
        return self._behind([CONTEXT_OF_A_BATCH - 1] * sequences, 1)

    def _part(self, positions: int, part: int) -> Callable[[], None]:
        return self._behind([positions - part // 2], part)

    def _prompt(self, tokens: int) -> Callable[[], None]:
        self._behind([], 0)

        def run() -> None:
            self._runner.prefill(0, self._tokens[:tokens], self._head, {})
            self._cache.remove(0)

        return run


def doubled(first: int, last: int) -> list[int]:
    """List sizes from `first`, each twice the one before, up to `last`."""
    sizes = [first]
    while sizes[-1] * 2 <= last:
        sizes.append(sizes[-1] * 2)
    return sizes


def explore(sweep: Sweep, meter: Meter, end: float) -> None:
    """Measure sizes from the smallest to the last that fits before `end`.

    The first run of a size also records graphs. It counts only where it is so long that this is a
    small part of it, or where there is no time for another.
    """
    for size in sweep.sizes:
        run = sweep.run(size)
        best = meter.timed(run)
        if best[0] < LONG and time.perf_counter() + best[0] < end:
            best = meter.timed(run)
        sweep.points.append(Point(size, *best))
        # The next size is twice this one, and costs that to the power of the limit, twice.
        if time.perf_counter() + 2 * best[0] * 2**sweep.limit > end:
            return


def improve(sweep: Sweep, meter: Meter, end: float) -> None:
    """Measure all sizes repeatedly until `end`; the fastest counts.

    Going round, rather than repeating each size at once, keeps what else the machine does for a
    while from hitting one size alone.
    """
    for _ in range(ROUNDS):
        for index, point in enumerate(sweep.points):
            if time.perf_counter() + 1.5 * point.seconds > end:
                continue
            seconds, host_seconds = meter.timed(sweep.run(point.size))
            sweep.points[index] = Point(
                point.size, min(seconds, point.seconds), min(host_seconds, point.host_seconds)
            )


def swept(sweep: Sweep, meter: Meter, budget: float) -> None:
    """Measure the points of a sweep that fit into `budget` seconds, then all of them again."""
    begin = time.perf_counter()
    explore(sweep, meter, begin + budget / 2)
    improve(sweep, meter, begin + budget)


def plot(sweeps: Sequence[Sweep], clock: str) -> str:
    """Plot a panel for each sweep, with a straight line that grows as its size does."""
    panels: list[str] = []
    for sweep in sweeps:
        points = [(float(p.size), p.seconds * 1e3) for p in sweep.points]
        host = [(float(p.size), max(p.host_seconds, 1e-6) * 1e3) for p in sweep.points]
        start, top = sweep.points[max(len(points) - FITTED, 0)], points[-1][0]
        linear = [
            (float(start.size), start.seconds * 1e3),
            (top, start.seconds * 1e3 * top / start.size),
        ]
        series = [Series("measured", points), Series("linear", linear, dashed=True)]
        if sweep.limit == 1:  # of a whole prompt, lavapipe lets a pass wait while it is submitted
            series.append(Series("host", host))
        slope = "" if sweep.exponent is None else f", exponent {sweep.exponent:.2f}"
        panels.append(lines(f"{sweep.name}{slope}", sweep.x, f"ms, {clock}", series))
    return picture(panels)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=BUNDLED)
    parser.add_argument("--longest", type=int, default=32768, help="prompt and context, tokens")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--budget", type=float, default=240, metavar="SECONDS")
    parser.add_argument("--only", default="", metavar="SWEEPS", help="beginnings of their names")
    parser.add_argument("--device", default="")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    end = time.perf_counter() + options.budget
    room = Model.positions(options.longest, options.sequences)
    with load(options.model, device=options.device or None, num_ctx=room) as model:
        device = f"{model.device.name}, {model.device.driver}"
        work = Model(model, options.longest, options.sequences)
        software = model.device.kind in ("software", "cpu")
        meter = Meter(time.process_time if software else time.perf_counter, work.host_seconds)
        clock = "processor time" if software else "wall clock"
        print(f"{options.model.name} on {device}, {clock}")
        wanted = tuple(options.only.split(","))
        sweeps = [sweep for sweep in work.sweeps() if sweep.name.startswith(wanted)]
        for number, sweep in enumerate(sweeps):
            share = (end - time.perf_counter()) / (len(sweeps) - number)
            swept(sweep, meter, share)
            print(table(sweep), flush=True)
    if options.json:
        result = {
            "model": options.model.name,
            "device": device,
            "clock": clock,
            "sweeps": list(map(report, sweeps)),
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    if options.plot:
        options.plot.write_text(plot(sweeps, clock), "utf-8")
    steep = [sweep.name for sweep in sweeps if sweep.too_steep]
    if steep:
        sys.exit(f"grows faster than its algorithm: {', '.join(steep)}")


def table(sweep: Sweep) -> str:
    """Format a sweep for the terminal."""
    rows = [f"\n{sweep.name}: {sweep.x}", f"{'':>10}{'ms':>12}{'host ms':>10}"]
    rows += [
        f"{p.size:10}{p.seconds * 1e3:12.2f}{p.host_seconds * 1e3:10.2f}" for p in sweep.points
    ]
    if sweep.exponent is not None:
        rows.append(f"exponent {sweep.exponent:.2f}, at most {sweep.limit} by the algorithm")
    if sweep.growth is not None:
        rows.append(f"behind {FAR} positions {sweep.growth:.2f} times behind {NEAR}")
    return "\n".join(rows)


def report(sweep: Sweep) -> dict[str, object]:
    """Convert a sweep for ``--json``."""
    return {
        "name": sweep.name,
        "size": sweep.x,
        "limit": sweep.limit,
        "exponent": sweep.exponent,
        "growth": sweep.growth,
        "points": [asdict(point) for point in sweep.points],
    }


if __name__ == "__main__":
    main()
