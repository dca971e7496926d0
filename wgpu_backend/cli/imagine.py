"""`wgpu-backend imagine`: text-to-image generation to a PNG file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from wgpu_backend.cli.completion import complete_pipeline
from wgpu_backend.cli.console import harmless, human_seconds, is_terminal, log_as_notes, note
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import exists, writable
from wgpu_backend.cli.options import (
    Debug,
    Device,
    Pixels,
    Settings,
    takes,
)
from wgpu_backend.cli.progress import bar

if TYPE_CHECKING:
    from PIL.Image import Image

    from wgpu_backend.images.pipelines.pipeline import Pipeline
    from wgpu_backend.images.requests import Generated, Step

Told = Callable[["Step"], object]


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


def imagine(
    words: tuple[str, str | None], out: Path, wanted: PictureOptions, device: str | None = None
) -> None:
    """Make pictures and write them.

    Parameters
    ----------
    words : (str, str or None)
        Model and prompt; a single text is a prompt for the bundled model.
    out : Path
        File of one picture; several get numbers before the suffix.
    device : str or None
        Name of the device; None for the best.

    Raises
    ------
    UsageError
        The prompt is missing, options do not fit together, or the file cannot be written.
    """
    from wgpu_backend.cli.loading import find_device
    from wgpu_backend.images.loading import load

    _require_fit(wanted)
    name, prompt = _sorted_out(*words)
    files = _files(out, wanted.count)
    log_as_notes()
    with load(name, device=find_device(Settings(device))) as pipeline:
        started = time.perf_counter()
        with _showing(prompt, wanted) as told:
            steps: list[int] = []
            made = _generated(pipeline, prompt, wanted, _all(told, lambda s: steps.append(s.count)))
        took = (time.perf_counter() - started) / wanted.count
    _write(files, made, {**_made_by(prompt, wanted), "steps": steps[-1], "model": name}, took)


def _require_fit(wanted: PictureOptions) -> None:
    """Raise if options have no effect or are out of range."""
    for option, value in (("--mask", wanted.mask), ("--strength", wanted.strength)):
        if value is not None and wanted.image is None:
            raise UsageError(f"{option}: requires --image")
    if wanted.strength is not None and not 0 < wanted.strength <= 1:
        raise UsageError(f"--strength: {wanted.strength}, needs more than 0 and at most 1")


def _sorted_out(first: str, second: str | None) -> tuple[str, str]:
    """Return model and prompt."""
    from wgpu_backend.images.bundled import PICTURES

    if second is not None:
        return first, second
    if first == PICTURES or exists(str(Path(first, "model_index.json"))):
        raise UsageError(f"{first}: a model, give a prompt behind it")
    return PICTURES, first


def _files(out: Path, count: int) -> list[Path]:
    """Return the files to write, checked before the pictures are made."""
    if out.suffix.lower() != ".png":
        raise UsageError(f"{out}: images are written as PNG, needs a name that ends in .png")
    if count == 1:
        return [writable(out)]
    return [writable(out.with_stem(f"{out.stem}-{i + 1}")) for i in range(count)]


def _generated(pipeline: Pipeline, prompt: str, wanted: PictureOptions, told: Told) -> Generated:
    return pipeline.generate(
        prompt,
        wanted.negative,
        num_inference_steps=wanted.steps,
        guidance_scale=wanted.guidance,
        image=wanted.image,
        mask_image=wanted.mask,
        strength=wanted.strength,
        height=wanted.height,
        width=wanted.width,
        seed=wanted.seed,
        num_images_per_prompt=wanted.count,
        callback=told,
    )


def _all(*told: Told) -> Told:
    """Combine several callbacks."""

    def tell(step: Step) -> None:
        for each in told:
            each(step)

    return tell


def _made_by(prompt: str, wanted: PictureOptions) -> dict[str, object]:
    """Return the metadata of a picture's file."""
    return {
        "prompt": prompt,
        "negative_prompt": wanted.negative,
        "guidance": wanted.guidance,
        "image": wanted.image and wanted.image.name,
        "strength": wanted.strength,
    }


def _write(files: list[Path], made: Generated, facts: dict[str, object], took: float) -> None:
    from wgpu_backend.images.pictures import save_png

    pictures = cast("list[Image]", made.images)
    for file, picture, seed in zip(files, pictures, made.seeds, strict=True):
        save_png(picture, file, {**facts, "seed": seed})
        size = f"{picture.width} × {picture.height}"
        note(f"{file}: {size}, seed {seed}, {facts['steps']} steps, {human_seconds(took)}")


@contextmanager
def _showing(prompt: str, wanted: PictureOptions) -> Generator[Told]:
    """Show the progress: a bar, or the picture itself while it forms."""
    if wanted.preview and is_terminal(sys.stderr):
        yield _Screen().show
        return
    done = [0]
    with bar(prompt) as move:

        def tell(step: Step) -> None:
            done[0] += 1
            if move is not None:
                move(done[0] / (step.count * wanted.count))

        yield tell


class _Screen:
    """A picture in a terminal, drawn over the former one."""

    _rows = 0

    def show(self, step: Step) -> None:
        """Draw the picture of a step, and the number of the step."""
        from wgpu_backend.images.pictures import to_picture

        lines = half_blocks(to_picture(step.preview()), *_room())
        up = f"\x1b[{self._rows}A" if self._rows and step.index else ""
        self._rows = len(lines) + 1
        text = harmless(f"step {step.index + 1} of {step.count}")
        sys.stderr.write(up + "".join(f"{line}\x1b[K\n" for line in [*lines, text]))
        sys.stderr.flush()


def _room() -> tuple[int, int]:
    import shutil

    columns, rows = shutil.get_terminal_size()
    return min(columns, 64), max(2 * (rows - 2), 2)


def half_blocks(picture: Image, columns: int, rows: int) -> list[str]:
    """Render a picture as lines of text, two pixels per character.

    Parameters
    ----------
    columns, rows : int
        Most pixels in each direction.
    """
    import numpy as np

    scale = min(columns / picture.width, rows / picture.height, 1.0)
    width = max(round(picture.width * scale), 1)
    height = max(round(picture.height * scale) // 2, 1) * 2
    pixels = np.asarray(picture.convert("RGB").resize((width, height))).tolist()
    return [
        "".join(map(_pair, *pair)) + "\x1b[0m" for pair in zip(*[iter(pixels)] * 2, strict=True)
    ]


def _pair(upper: list[int], lower: list[int]) -> str:
    """Return a half-block character with different colours of its upper and lower half."""
    over, under = (";".join(map(str, colour)) for colour in (upper, lower))
    return f"\x1b[38;2;{over}m\x1b[48;2;{under}m▀"


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
    imagine((model, prompt), out, wanted, device)
