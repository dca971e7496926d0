"""`wgpu-backend profile`: the device time of each op of a pass."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wgpu_backend.cli.clocks import at_full_clock
from wgpu_backend.cli.console import answer, human_seconds, note, print_table
from wgpu_backend.cli.loading import open_model
from wgpu_backend.cli.names import model_path, save, writable
from wgpu_backend.cli.options import Settings
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.runner import SHORTEST, Head, Work, bucket
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.batch import BatchShape

SEQUENCE = 0
RUNS = 5


@dataclass(frozen=True, slots=True)
class Step:
    """The dispatches of one pass, in order.

    Parameters
    ----------
    seconds : tuple of float
        Time of each dispatch, the median of several runs.
    """

    name: str
    ops: tuple[str, ...]
    shaders: tuple[str, ...]
    seconds: tuple[float, ...]

    @property
    def total(self) -> float:
        """Sum of the seconds of all dispatches."""
        return sum(self.seconds)


def profile(
    name: str, prompt: int, trace: Path | None, settings: Settings, *, full: bool = False
) -> None:
    """Time a prompt and the step after it; print a table for each, and write a trace.

    Parameters
    ----------
    name : str
        Model.
    prompt : int
        Tokens of the prompt.
    trace : Path or None
        File for a trace in Chrome's format.
    full : bool
        Print a row for each combination of a shader's constants.
    """
    path, trace = model_path(name), trace and writable(trace)
    with open_model(path, settings) as model:
        steps = timed_steps(model, min(prompt, model.runner.chunk, model.num_ctx - 1))
        _say_clock(model)
    if trace is not None:  # before the tables, since a reader of stdout may stop early
        text = json.dumps(chrome_trace(name, steps))
        save(trace, lambda file: file.write(text.encode()))
        note(f"{trace}: open it in https://ui.perfetto.dev or chrome://tracing")
    for number, step in enumerate(steps):
        answer("\n" if number else "")
        print_step(step, full=full)


def timed_steps(model: LanguageModel, prompt: int) -> list[Step]:
    """Time a prompt of random tokens in one pass, and the decode step after it."""
    head = Head("profile", lambda _, hidden: [model.model.logits(hidden).argmax()])
    tokens: list[int] = np.random.default_rng(0).integers(0, model.vocabulary, prompt).tolist()
    return [
        _timed(model, head, f"prompt of {prompt} tokens", tokens),
        _timed(model, head, f"decode step at {prompt}", tokens[:1]),
    ]


def _timed(model: LanguageModel, head: Head, name: str, tokens: Sequence[int]) -> Step:
    """Run a pass once to fill its inputs, then several times with a clock."""
    runner = model.runner
    longest = runner.cache.length(SEQUENCE) + len(tokens)
    shape = BatchShape(
        bucket(len(tokens)), 1, 1, min(bucket(longest, SHORTEST), runner.cache.positions)
    )
    runner.run([Work(SEQUENCE, tokens, (len(tokens) - 1,))], head, {}).wait()
    recorded = runner.recorded(shape, head)
    at_full_clock(recorded.timed, model.backend.executor.capabilities)
    runs = [recorded.timed() for _ in range(RUNS)]
    ops, shaders, _ = zip(*runs[0], strict=True)
    seconds = np.median([[s for _, _, s in run] for run in runs], axis=0)
    return Step(name, ops, shaders, tuple(seconds.tolist()))


def _say_clock(model: LanguageModel) -> None:
    executor = model.backend.executor
    by_device = isinstance(executor, WgpuExecutor) and executor.capabilities.timestamps
    if not by_device:
        note("the device has no clock: times are the host's and include the way there and back")


def by_shader(step: Step, *, full: bool) -> list[tuple[str, str, int, float]]:
    """Return op, shader, calls and seconds, most expensive first.

    Parameters
    ----------
    full : bool
        Distinguish shaders by their constants; else only by their names.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    for op, called, seconds in zip(step.ops, step.shaders, step.seconds, strict=True):
        shader = called if full else called.partition("(")[0]
        sums.setdefault((op, shader), []).append(seconds)
    rows = [(op, shader, len(each), sum(each)) for (op, shader), each in sums.items()]
    return sorted(rows, key=lambda row: -row[3])


def print_step(step: Step, *, full: bool) -> None:
    """Print the table of a step; `full` distinguishes shaders by their constants."""
    rows = [
        (op, shader, str(calls), human_seconds(s), f"{s / (step.total or 1.0):.1%}")
        for op, shader, calls, s in by_shader(step, full=full)
    ]
    rows.append(("all", "", str(len(step.ops)), human_seconds(step.total), ""))
    columns = ("op", "shader", "calls", "time", "share")
    print_table(columns, rows, right=columns[2:], title=step.name)


def chrome_trace(model: str, steps: Sequence[Step]) -> dict[str, object]:
    """Convert steps to the Trace Event Format, in sequence, with times in microseconds."""
    return {"displayTimeUnit": "ns", "traceEvents": [*_names(model), *_events(steps)]}


def _names(model: str) -> Iterator[dict[str, object]]:
    for key, number, name in (("process_name", 0, model), ("thread_name", 1, "passes")):
        yield {"ph": "M", "name": key, "pid": 1, "tid": number, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "dispatches"}}


def _events(steps: Sequence[Step]) -> Iterator[dict[str, object]]:
    now = 0.0
    for step in steps:
        yield _span(step.name, "pass", 1, now, step.total)
        for op, shader, seconds in zip(step.ops, step.shaders, step.seconds, strict=True):
            yield {**_span(op, "dispatch", 2, now, seconds), "args": {"shader": shader}}
            now += seconds


def _span(name: str, kind: str, thread: int, start: float, seconds: float) -> dict[str, object]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": 1,
        "tid": thread,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
    }
