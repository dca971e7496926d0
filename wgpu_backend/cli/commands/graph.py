"""`wgpu-backend graph`: the steps of a pass before and after fusion, and their memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wgpu_backend.cli.console import human_bytes, note, print_table, print_text
from wgpu_backend.cli.names import find_model, require_writable, save
from wgpu_backend.cli.options import Model, ModelSettings, PromptTokens, with_model_options

if TYPE_CHECKING:
    from wgpu_backend.engine.graph_facts import Pass, Schedule, Step


@with_model_options
def graph(
    model: Model,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", dir_okay=False, help="File for an HTML page of the graphs."
        ),
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="List every step.")] = False,
    prompt: PromptTokens = 128,
    *,
    settings: ModelSettings,
) -> None:
    """Show the steps of a pass before and after fusion, and memory."""
    from wgpu_backend.cli.loading import open_model

    path, html = find_model(model), html and require_writable(html)
    with open_model(path, settings, self_test=False) as opened:
        # One pass takes at most a chunk, and a position must be left for the decode step.
        passes = opened.graphs(min(prompt, opened.runner.chunk, opened.num_ctx - 1))
    if html is not None:
        # Before the tables: a reader of stdout may stop early, which ends the program.
        text = render_page(f"{path.name} on {opened.device.name}", passes)
        save(html, lambda file: file.write(text.encode()))
        note(f"{html}: open it in a browser")
    for number, each in enumerate(passes):
        print_text("\n" if number else "")
        _print(each, steps=steps)


def render_page(title: str, passes: Sequence[Pass]) -> str:
    """Render passes as one self-contained HTML page."""
    data = json.dumps({"title": title, "passes": [asdict(each) for each in passes]})
    template = files("wgpu_backend.cli").joinpath("graph.html").read_text("utf-8")
    # Escaped, so that no text of a model file can end the script element or begin another.
    return template.replace("{{data}}", data.replace("<", "\\u003c"))


def _print(each: Pass, *, steps: bool) -> None:
    before, after = (
        Counter(s.op for s in each.before.steps),
        Counter(s.op for s in each.after.steps),
    )
    written = {op: sum(s.nbytes for s in each.after.steps if s.op == op) for op in after}
    rows = [
        (op, str(before[op] or ""), str(after[op] or ""), human_bytes(written.get(op, 0)))
        for op in sorted({*before, *after}, key=lambda op: (-after[op], -before[op], op))
    ]
    total = sum(written.values())
    rows.append(("all", str(before.total()), str(after.total()), human_bytes(total)))
    columns = ("op", "before fusion", "after", "written")
    print_table(columns, rows, right=columns[1:], title=each.name)
    print_text(f"{each.dispatches} dispatches; before fusion {_format_memory(each.before)}; ")
    print_text(f"after it {_format_memory(each.after)}\n")
    if steps:
        _print_steps(each.after)


def _format_memory(schedule: Schedule) -> str:
    return (
        f"{len(schedule.slot_nbytes)} slots, together {human_bytes(schedule.peak_nbytes)}, "
        f"{human_bytes(schedule.live_nbytes)} alive at once"
    )


def _print_steps(schedule: Schedule) -> None:
    """Print a line for each step, unwrapped, so that names of weights can be searched for."""
    ends = {life.first: life.last for life in schedule.lives}
    wide = max((len(step.op) for step in schedule.steps), default=0)
    print_text("\n")
    for number, step in enumerate(schedule.steps):
        place = f"slot {step.slot} to {ends.get(number, number)}" if step.nbytes else step.place
        operands = ", ".join(f"{o.name}={o.what}" for o in step.operands)
        line = (
            f"{f'%{number}':>5} {step.op:{wide}} {_format_shape(step.shape) + ' ' + step.dtype:18} "
            f"{human_bytes(step.nbytes) if step.nbytes else '':>10}  {place:16} {operands}"
        )
        print_text(f"{line}{_format_origin(step)}\n")


def _format_shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _format_origin(step: Step) -> str:
    return "" if step.made_of == (step.op,) else f"  = {' + '.join(step.made_of)}"
