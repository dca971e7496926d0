"""The commands about models on this machine: names, options and help."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.completion import complete_stored
from wgpu_backend.cli.options import (
    Debug,
    Imports,
    Json,
    Model,
    Settings,
    makes_answers,
    opens_a_model,
)
from wgpu_backend.cli.parameters import Value
from wgpu_backend.cli.serve_options import Given, serves

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="As the store has it: qwen2.5:7b.", autocompletion=complete_stored
    ),
]


def add_library(app: typer.Typer) -> None:
    """Give the program these commands."""
    app.command()(show)
    app.command("list")(list_)
    app.command("ls", hidden=True)(list_)
    app.command()(opens_a_model(makes_answers(serves(serve))))
    for command in (pull, push, cp, rm, ps, stop):
        app.command()(command)


def show(
    model: Model,
    as_json: Json = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List the tensors.")] = False,
    template: Annotated[
        bool, typer.Option("--template", help="Write the chat template as it is.")
    ] = False,
    modelfile: Annotated[
        bool, typer.Option("--modelfile", help="Write the Modelfile of a stored model.")
    ] = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Write a stored model's parameters.")
    ] = False,
    system: Annotated[
        bool, typer.Option("--system", help="Write a stored model's system message.")
    ] = False,
    license_: Annotated[bool, typer.Option("--license", help="Write the license.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Every key of the file, and its tensors.")
    ] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Show what a model, a GGUF file or a folder holds."""
    from wgpu_backend.cli.show import print_model

    parts = {
        "tensors": tensors,
        "template": template,
        "modelfile": modelfile,
        "parameters": parameters,
        "system": system,
        "license": license_,
        "verbose": verbose,
    }
    print_model(model, [name for name, given in parts.items() if given], as_json=as_json)


def list_(as_json: Json = False, debug: Debug = False) -> None:
    """List the models of the store, the newest first."""
    from wgpu_backend.cli.library import print_list

    print_list(as_json=as_json)


def pull(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="At Ollama's registry, or hf.co/owner/repo:Q4_K_M."),
    ],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow a registry at http://.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Bring a model into the store; what an earlier try left is gone on with."""
    from wgpu_backend.cli.pulling import pull_model

    pull_model(name, insecure=insecure)


def push(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Says where to: host/namespace/model:tag.",
            autocompletion=complete_stored,
        ),
    ],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow a registry at http://.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Bring a model of the store to a registry; what that has is not sent again."""
    from wgpu_backend.cli.pulling import push_model

    push_model(name, insecure=insecure)


def cp(
    source: Name,
    destination: Annotated[str, typer.Argument(metavar="NEW", help="A second name.")],
    debug: Debug = False,
) -> None:
    """Give a model of the store a second name."""
    from wgpu_backend.cli.library import copy_model

    copy_model(source, destination)


def rm(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Models to remove.", autocompletion=complete_stored),
    ],
    debug: Debug = False,
) -> None:
    """Remove models from the store, with the files that no other model has."""
    from wgpu_backend.cli.library import remove_models

    remove_models(names)


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
            help="What guesses tokens ahead: ngram, or a smaller model of the same tokens.",
        ),
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option("--draft-tokens", metavar="N", min=1, max=7, help="Guessed at once (3)."),
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
    given: Given,
    parameters: Mapping[str, Value],
    settings: Settings,
) -> None:
    """Serve models to clients of Ollama, OpenAI, Anthropic, llama-server (127.0.0.1:11434)."""
    from wgpu_backend.cli.serving import serve as run

    run(
        settings,
        given,
        parameters,
        anybody=allow_anyone,
        parallel=parallel,
        draft=draft,
        draft_tokens=draft_tokens,
        pictures=pictures or [],
    )


def ps(as_json: Json = False, debug: Debug = False) -> None:
    """List the models that a running server has loaded."""
    from wgpu_backend.cli.serving import print_running

    print_running(as_json=as_json)


def stop(name: Name, debug: Debug = False) -> None:
    """Have a running server unload a model."""
    from wgpu_backend.cli.serving import stop_model

    stop_model(name)
