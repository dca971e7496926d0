"""`wgpu-backend serve`: its options; `server` builds the server from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.commands.serve.options import (
    AddressOptions,
    ApiOptions,
    DefaultModelOptions,
    EngineOptions,
)
from wgpu_backend.cli.options import (
    ModelSettings,
    NoWarmup,
    with_answer_options,
    with_model_options,
    with_option_groups,
)
from wgpu_backend.cli.parameters import Value


@with_model_options
@with_answer_options
@with_option_groups(
    address=AddressOptions, default_model=DefaultModelOptions, engine=EngineOptions, api=ApiOptions
)
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
            help="Parallel answers of each model.",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            metavar="MODEL",
            help="Speculative decoding: ngram, or a smaller model with the same vocabulary.",
        ),
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option(
            "--draft-tokens", metavar="N", min=1, max=7, help="Draft tokens per step (3)."
        ),
    ] = None,
    pictures: Annotated[
        list[Path] | None,
        typer.Option(
            "--pictures",
            metavar="FOLDER",
            help="Diffusers folder for image generation; may be given several times.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ADDRESS",
            help="Ray cluster with a replica of each model on every node: HOST:PORT, or auto.",
        ),
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option(
            "--stages", metavar="N", min=1, help="Nodes of the cluster that share a model's layers."
        ),
    ] = None,
    no_warmup: NoWarmup = False,
    *,
    address: AddressOptions,
    default_model: DefaultModelOptions,
    engine: EngineOptions,
    api: ApiOptions,
    parameters: Mapping[str, Value],
    settings: ModelSettings,
) -> None:
    """Serve models over the APIs of Ollama, OpenAI and Anthropic."""
    from wgpu_backend.cli.commands.serve.server import ServeOptions, run_server

    options = ServeOptions(
        address,
        default_model,
        engine,
        api,
        parameters,
        allow_anyone=allow_anyone,
        parallel=parallel,
        draft=draft,
        draft_tokens=draft_tokens,
        pictures=pictures or [],
        cluster=cluster,
        stages=stages,
    )
    run_server(options, replace(settings, warmup=not no_warmup))
