"""The options of the commands for a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.options import (
    Settings,
    makes_answers,
    opens_a_model,
    takes,
)
from wgpu_backend.cli.parameters import Value
from wgpu_backend.cli.serve.engine import EngineOptions
from wgpu_backend.cli.serve.listening import Listening
from wgpu_backend.cli.serve.own_model import OwnModel
from wgpu_backend.cli.serve.shown import Shown


@opens_a_model
@makes_answers
@takes(listening=Listening, own_model=OwnModel, engine=EngineOptions, shown=Shown)
def serve(
    allow_anyone: Annotated[
        bool,
        typer.Option("--allow-anyone", help="Serve other machines without a key."),
    ] = False,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--num-parallel",
            "--parallel",
            metavar="N",
            min=1,
            max=32,
            help="Answers at once of each model.",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            metavar="MODEL",
            help="Speculative decoding: ngram, or a smaller model of the same tokens.",
        ),
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option("--draft-tokens", metavar="N", min=1, max=7, help="Draft tokens at once (3)."),
    ] = None,
    pictures: Annotated[
        list[Path] | None,
        typer.Option(
            "--pictures",
            metavar="FOLDER",
            help="Also make pictures with a folder of diffusers' layout; several are allowed.",
        ),
    ] = None,
    *,
    listening: Listening,
    own_model: OwnModel,
    engine: EngineOptions,
    shown: Shown,
    parameters: Mapping[str, Value],
    settings: Settings,
) -> None:
    """Serve models over the APIs of Ollama, OpenAI and Anthropic."""
    from wgpu_backend.cli.serve.command import Wanted
    from wgpu_backend.cli.serve.command import serve as run

    wanted = Wanted(
        listening,
        own_model,
        engine,
        shown,
        parameters,
        anybody=allow_anyone,
        parallel=parallel,
        draft=draft,
        draft_tokens=draft_tokens,
        pictures=pictures or [],
    )
    run(wanted, settings)
