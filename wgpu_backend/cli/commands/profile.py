"""`wgpu-backend profile`: the device time of each op of a pass."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wgpu_backend.cli.clocks import run_at_full_clock
from wgpu_backend.cli.console import human_seconds, note, print_table, print_text
from wgpu_backend.cli.names import find_model, require_writable, save
from wgpu_backend.cli.options import Model, ModelSettings, PromptTokens, with_model_options

if TYPE_CHECKING:
    from wgpu_backend.engine.language_model import LanguageModel
    from wgpu_backend.engine.runner import Head

SEQUENCE = 0
RUNS = 5


@dataclass(frozen=True, slots=True)
class TimedPass:
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


@with_model_options
def profile(
    model: Model,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", dir_okay=False, help="File for a Chrome trace."),
    ] = None,
    prompt: PromptTokens = 128,
    full: Annotated[
        bool, typer.Option("--full", help="Distinguish shaders by their constants.")
    ] = False,
    *,
    settings: ModelSettings,
) -> None:
    """Show the time of each op and shader in a pass of a model."""
    from wgpu_backend.cli.loading import open_model

    path, trace = find_model(model), trace and require_writable(trace)
    with open_model(path, settings) as opened:
        # One pass takes at most a chunk, and a position must be left for the decode step.
        passes = time_passes(opened, min(prompt, opened.runner.chunk, opened.num_ctx - 1))
        _note_missing_clock(opened)
    if trace is not None:
        # Before the tables: a reader of stdout may stop early, which ends the program.
        text = json.dumps(make_chrome_trace(model, passes))
        save(trace, lambda file: file.write(text.encode()))
        note(f"{trace}: open it in https://ui.perfetto.dev or chrome://tracing")
    for number, each in enumerate(passes):
        print_text("\n" if number else "")
        print_pass(each, full=full)


def time_passes(model: LanguageModel, prompt: int) -> list[TimedPass]:
    """Time a prompt of random tokens in one pass, and the decode step after it."""
    import numpy as np

    from wgpu_backend.engine.runner import Head

    head = Head("profile", lambda _, hidden: [model.model.logits(hidden).argmax()])
    tokens: list[int] = np.random.default_rng(0).integers(0, model.vocabulary, prompt).tolist()
    return [
        _time_pass(model, head, f"prompt of {prompt} tokens", tokens),
        _time_pass(model, head, f"decode step at {prompt}", tokens[:1]),
    ]


def _time_pass(model: LanguageModel, head: Head, name: str, tokens: Sequence[int]) -> TimedPass:
    """Run a pass once to fill its inputs, then several times with a clock."""
    import numpy as np

    from wgpu_backend.engine.runner import SHORTEST, Work, bucket
    from wgpu_backend.nn.batch import BatchShape

    runner = model.runner
    longest = runner.cache.length(SEQUENCE) + len(tokens)
    shape = BatchShape(
        bucket(len(tokens)), 1, 1, min(bucket(longest, SHORTEST), runner.cache.positions)
    )
    runner.run([Work(SEQUENCE, tokens, (len(tokens) - 1,))], head, {}).wait()
    recorded = runner.recorded(shape, head)
    run_at_full_clock(recorded.timed, model.backend.executor.capabilities)
    runs = [recorded.timed() for _ in range(RUNS)]
    ops, shaders, _ = zip(*runs[0], strict=True)
    # The median leaves out runs that other programs disturbed.
    seconds = np.median([[s for _, _, s in run] for run in runs], axis=0)
    return TimedPass(name, ops, shaders, tuple(seconds.tolist()))


def _note_missing_clock(model: LanguageModel) -> None:
    from wgpu_backend.ml.wgpu.executor import WgpuExecutor

    executor = model.backend.executor
    by_device = isinstance(executor, WgpuExecutor) and executor.capabilities.timestamps
    if not by_device:
        note("the device has no timestamps: times are the host's and include the round trip")


def sum_by_shader(step: TimedPass, *, full: bool) -> list[tuple[str, str, int, float]]:
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


def print_pass(step: TimedPass, *, full: bool) -> None:
    """Print the table of a step; `full` distinguishes shaders by their constants."""
    rows = [
        (op, shader, str(calls), human_seconds(s), f"{s / (step.total or 1.0):.1%}")
        for op, shader, calls, s in sum_by_shader(step, full=full)
    ]
    rows.append(("all", "", str(len(step.ops)), human_seconds(step.total), ""))
    columns = ("op", "shader", "calls", "time", "share")
    print_table(columns, rows, right=columns[2:], title=step.name)


def make_chrome_trace(model: str, steps: Sequence[TimedPass]) -> dict[str, object]:
    """Convert steps to the Trace Event Format, in sequence, with times in microseconds."""
    return {"displayTimeUnit": "ns", "traceEvents": [*_make_names(model), *_make_events(steps)]}


def _make_names(model: str) -> Iterator[dict[str, object]]:
    for key, number, name in (("process_name", 0, model), ("thread_name", 1, "passes")):
        yield {"ph": "M", "name": key, "pid": 1, "tid": number, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "dispatches"}}


def _make_events(steps: Sequence[TimedPass]) -> Iterator[dict[str, object]]:
    now = 0.0
    for step in steps:
        yield _make_span(step.name, "pass", 1, now, step.total)
        for op, shader, seconds in zip(step.ops, step.shaders, step.seconds, strict=True):
            yield {**_make_span(op, "dispatch", 2, now, seconds), "args": {"shader": shader}}
            now += seconds


def _make_span(
    name: str, kind: str, thread: int, start: float, seconds: float
) -> dict[str, object]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": 1,
        "tid": thread,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
    }
