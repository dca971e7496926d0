"""The program: its commands, in the order of the help; their implementations load lazily."""

from __future__ import annotations

from typing import Annotated

import typer

from wgpu_backend.cli.device_commands import bench, graph_, profile_, tune_
from wgpu_backend.cli.devices import devices
from wgpu_backend.cli.file_commands import create_, quantize
from wgpu_backend.cli.imagine import imagine_
from wgpu_backend.cli.library_commands import cp, list_, rm, show
from wgpu_backend.cli.op import op_app
from wgpu_backend.cli.perplexity import perplexity
from wgpu_backend.cli.pulling import pull, push
from wgpu_backend.cli.running import ps, stop
from wgpu_backend.cli.server_commands import serve
from wgpu_backend.cli.text_commands import run
from wgpu_backend.cli.tokens import tokenize
from wgpu_backend.cli.vectors import embed, logits, rerank

_COMMANDS = (
    *(show, list_, serve, pull, push, cp, rm, ps, stop),
    *(run, devices, create_, tokenize, logits, embed, rerank, imagine_, perplexity, quantize),
    *(bench, profile_, graph_, tune_),
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
    # A trailing underscore avoids the name of a module or a builtin.
    app.command(command.__name__.rstrip("_"))(command)
app.command("ls", hidden=True)(list_)


def _version(value: bool) -> None:
    if value:
        from wgpu_backend import __version__
        from wgpu_backend.cli.console import answer

        answer(f"wgpu-backend {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...
