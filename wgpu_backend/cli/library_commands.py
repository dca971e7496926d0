"""The options of the commands for stored models."""

from __future__ import annotations

from typing import Annotated

import typer

from wgpu_backend.cli.options import Debug, Imports, Json, Model


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
