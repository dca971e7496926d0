"""The options of the commands that write models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.options import Debug, ImportanceMatrix, Json, Model, Threads


def create_(
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="GGUF file to write, or a name for the store.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Folder with config.json, a tokenizer and safetensors."),
    ] = None,
    modelfile: Annotated[
        Path | None,
        typer.Option("-f", "--file", metavar="FILE", help="Modelfile to make a stored model of."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--type",
            "-t",
            metavar="TYPE",
            help="By llama.cpp's name: Q4_K_M, Q8_0, BF16; the folder's if left out.",
        ),
    ] = None,
    importance: ImportanceMatrix = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Create a GGUF file of a folder, or a model of a Modelfile."""
    from wgpu_backend.cli.creating import create_either

    create_either(out, folder, modelfile, dtype, importance, threads)


def quantize(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf", dir_okay=False)],
    dtype: Annotated[
        str, typer.Argument(metavar="TYPE", help="By llama.cpp's name: Q4_K_M, Q8_0, BF16.")
    ],
    importance: ImportanceMatrix = None,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Take values that were quantised before."),
    ] = False,
    threads: Threads = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a GGUF file with its matrices in another type."""
    from wgpu_backend.cli.quantising import quantise_file

    quantise_file(
        model,
        out,
        dtype,
        importance,
        threads,
        allow_requantize=allow_requantize,
        as_json=as_json,
    )
