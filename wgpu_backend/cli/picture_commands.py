"""The options of `imagine`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.completion import complete_pipeline
from wgpu_backend.cli.options import Debug, Device, Pixels, takes


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """The options of text-to-image generation; None for the model's default."""

    negative: Annotated[
        str | None, typer.Option("--negative", metavar="TEXT", help="What to stay away from.")
    ] = None
    width: Pixels = None
    height: Pixels = None
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, max=10_000, help="Steps to make.")
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", min=0, help="The same gives the same picture on any device."
        ),
    ] = None
    guidance: Annotated[
        float | None,
        typer.Option("--guidance", metavar="X", min=0, help="How closely to keep to the prompt."),
    ] = None
    image: Annotated[
        Path | None,
        typer.Option("--image", metavar="FILE", dir_okay=False, help="Picture to begin with."),
    ] = None
    mask: Annotated[
        Path | None,
        typer.Option("--mask", metavar="FILE", dir_okay=False, help="White where to paint anew."),
    ] = None
    strength: Annotated[
        float | None,
        typer.Option(
            "--strength", metavar="X", min=0, max=1, help="How much of the picture is made anew."
        ),
    ] = None
    count: Annotated[
        int, typer.Option("-n", "--n", metavar="N", min=1, max=64, help="Pictures to make.")
    ] = 1
    preview: Annotated[
        bool, typer.Option("--preview", help="Show the picture in the terminal while it forms.")
    ] = False


@takes(wanted=PictureOptions)
def imagine_(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="Folder with model_index.json; `pictures`, the bundled one, if left out.",
            autocompletion=complete_pipeline,
        ),
    ],
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to show.", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE.png", dir_okay=False, help="File to write.")
    ] = Path("picture.png"),
    *,
    wanted: PictureOptions,
    device: Device = None,
    debug: Debug = False,
) -> None:
    """Make a picture of a text and write it as a PNG file."""
    from wgpu_backend.cli.imagine import imagine

    imagine((model, prompt), out, wanted, device)
