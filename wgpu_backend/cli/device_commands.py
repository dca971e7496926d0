"""The options of the commands for devices and speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.completion import complete_model
from wgpu_backend.cli.options import Debug, Device, Json, Model, Profile, Settings, opens_a_model
from wgpu_backend.cli.parameters import MAX_CONTEXT

PromptTokens = Annotated[
    int, typer.Option("-p", "--n-prompt", min=1, max=MAX_CONTEXT, help="Tokens of the prompt.")
]


@opens_a_model
def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="GGUF files, folders, or `story`.",
            autocompletion=complete_model,
        ),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--model", metavar="MODEL,…", help="The same.", autocompletion=complete_model
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--n-prompt",
            metavar="N,…",
            help="Tokens of a prompt. [default: 128]",
        ),
    ] = None,
    generate: Annotated[
        list[str] | None,
        typer.Option("-n", "--n-gen", metavar="N,…", help="Tokens to make. [default: 32]"),
    ] = None,
    repetitions: Annotated[
        int,
        typer.Option(
            "-r", "--repetitions", metavar="N", min=1, max=1000, help="Runs of each test."
        ),
    ] = 5,
    compare_prediction: Annotated[
        bool,
        typer.Option(
            "--compare-prediction", help="Show what static costs predict for this card, too."
        ),
    ] = False,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Measure tokens per second, host time and bandwidth of a model."""
    from wgpu_backend.cli.bench import Plan, bench, model_names, token_counts

    plan = Plan(
        token_counts("-p", prompt or ["128"]), token_counts("-n", generate or ["32"]), repetitions
    )
    names = model_names(models or [], named or [])
    bench(names, plan, settings, as_json=as_json, compares=compare_prediction)


@opens_a_model
def profile_(
    model: Model,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", dir_okay=False, help="Write a Chrome trace."),
    ] = None,
    prompt: PromptTokens = 128,
    full: Annotated[
        bool, typer.Option("--full", help="Tell shaders apart by their constants, too.")
    ] = False,
    *,
    settings: Settings,
) -> None:
    """Show the time of each op and shader in a pass of a model."""
    from wgpu_backend.cli.profiling import profile as measure

    measure(model, prompt, trace, settings, full=full)


@opens_a_model
def graph_(
    model: Model,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", dir_okay=False, help="Write a page to explore it."),
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="List every step.")] = False,
    prompt: PromptTokens = 128,
    *,
    settings: Settings,
) -> None:
    """Show the steps of a pass before and after fusion, and memory."""
    from wgpu_backend.cli.graph import graph

    graph(model, prompt, html, settings, steps=steps)


def tune_(
    only: Annotated[
        str, typer.Option("--only", metavar="FORMATS", help="Formats of weights: q4_0,q6_k.")
    ] = "",
    as_json: Json = False,
    device: Device = None,
    profile: Profile = "full",
    debug: Debug = False,
) -> None:
    """Measure and keep the fastest kernels for a device."""
    from wgpu_backend.cli.tune import tune_device

    tune_device(device, profile, only, as_json=as_json)
