"""The options of the commands for stored models."""

from __future__ import annotations

from typing import Annotated

import typer

from wgpu_backend.cli.completion import complete_stored
from wgpu_backend.cli.options import (
    Debug,
    Imports,
    Json,
    Model,
    StoredName,
)


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


def cp(
    source: StoredName,
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
    """Remove models from the store."""
    from wgpu_backend.cli.library import remove_models

    remove_models(names)
