"""The Typer application: the commands in the order of the help."""

from __future__ import annotations

from typing import Annotated

import typer

from wgpu_backend.cli.commands.bench import bench
from wgpu_backend.cli.commands.create import create
from wgpu_backend.cli.commands.devices import devices
from wgpu_backend.cli.commands.embed import embed, rerank
from wgpu_backend.cli.commands.graph import graph
from wgpu_backend.cli.commands.imagine import imagine
from wgpu_backend.cli.commands.library import cp, list_, rm
from wgpu_backend.cli.commands.logits import logits
from wgpu_backend.cli.commands.op import op_app
from wgpu_backend.cli.commands.perplexity import perplexity
from wgpu_backend.cli.commands.profile import profile
from wgpu_backend.cli.commands.ps import ps, stop
from wgpu_backend.cli.commands.pull import pull, push
from wgpu_backend.cli.commands.quantize import quantize
from wgpu_backend.cli.commands.run import run
from wgpu_backend.cli.commands.serve.command import serve
from wgpu_backend.cli.commands.show import show
from wgpu_backend.cli.commands.tokenize import tokenize
from wgpu_backend.cli.commands.transcribe import transcribe
from wgpu_backend.cli.commands.tune import tune

_COMMANDS = (
    *(show, list_, serve, pull, push, cp, rm, ps, stop),
    *(run, devices, create, tokenize, logits, embed, rerank, imagine, transcribe),
    *(perplexity, quantize, bench, profile, graph, tune),
)

app = typer.Typer(
    help="Run GGUF language models on any GPU: every tensor op a WGSL compute shader.",
    no_args_is_help=True,
    # Rich's boxes leave only 28 of 80 columns for the text.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(op_app, name="op")
for command in _COMMANDS:
    # `list_` has an underscore so that it does not shadow the builtin.
    app.command(command.__name__.rstrip("_"))(command)
app.command("ls", hidden=True)(list_)


def _version(value: bool) -> None:
    if value:
        from wgpu_backend import __version__
        from wgpu_backend.cli.console import print_text

        print_text(f"wgpu-backend {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...
