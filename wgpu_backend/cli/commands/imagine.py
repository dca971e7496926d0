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
from wgpu_backend.cli.names import exists, require_writable
from wgpu_backend.cli.options import (
    Debug,
    Device,
    Exact,
    Implementation,
    ModelSettings,
    Pixels,
    set_implementation,
    with_option_groups,
)
from wgpu_backend.cli.progress import bar

if TYPE_CHECKING:
    from PIL.Image import Image

    from wgpu_backend.images.pipelines.pipeline import Pipeline
    from wgpu_backend.images.requests import Generated, Step

StepCallback = Callable[["Step"], object]


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """The options of text-to-image generation; None for the model's default."""

    negative: Annotated[
        str | None, typer.Option("--negative", metavar="TEXT", help="Negative prompt.")
    ] = None
    width: Pixels = None
    height: Pixels = None
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, max=10_000, help="Number of denoising steps."),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            help="Seed; the same seed gives the same image on any device.",
        ),
    ] = None
    guidance: Annotated[
        float | None,
        typer.Option("--guidance", metavar="X", min=0, help="Guidance scale."),
    ] = None
    image: Annotated[
        Path | None,
        typer.Option("--image", metavar="FILE", dir_okay=False, help="Image to start from."),
    ] = None
    mask: Annotated[
        Path | None,
        typer.Option(
            "--mask",
            metavar="FILE",
            dir_okay=False,
            help="Inpainting mask: white areas are regenerated.",
        ),
    ] = None
    strength: Annotated[
        float | None,
        typer.Option(
            "--strength", metavar="X", min=0, max=1, help="How much to change --image, up to 1."
        ),
    ] = None
    count: Annotated[
        int, typer.Option("-n", "--n", metavar="N", min=1, max=64, help="Number of images.")
    ] = 1
    preview: Annotated[
        bool, typer.Option("--preview", help="Show the image in the terminal during generation.")
    ] = False


@with_option_groups(options=PictureOptions)
def imagine(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="Folder with model_index.json; `pictures`, the bundled one, if left out.",
            autocompletion=complete_pipeline,
        ),
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Description of the image.", show_default=False),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE.png", dir_okay=False, help="File to write.")
    ] = Path("picture.png"),
    *,
    options: PictureOptions,
    device: Device = None,
    implementation: Implementation = None,
    exact: Exact = False,
    debug: Debug = False,
) -> None:
    """Generate an image from a prompt and write it as a PNG file."""
    from wgpu_backend.cli.loading import find_device
    from wgpu_backend.images.loading import load

    set_implementation(implementation)
    _require_fit(options)
    name, text = _split_model_and_prompt(model, prompt)
    files = _list_files(out, options.count)
    log_as_notes()
    with load(name, device=find_device(ModelSettings(device)), exact=exact) as pipeline:
        began = time.perf_counter()
        with _show_progress(text, options) as callback:
            steps: list[int] = []
            images = _generate(
                pipeline, text, options, _chain(callback, lambda s: steps.append(s.count))
            )
        seconds = (time.perf_counter() - began) / options.count
    # Image-to-image makes fewer steps than asked for, so the pipeline's own count is noted.
    facts = {**_make_metadata(text, options), "steps": steps[-1], "model": name}
    _write(files, images, facts, seconds)


def _require_fit(options: PictureOptions) -> None:
    """Raise if options have no effect or are out of range."""
    for option, value in (("--mask", options.mask), ("--strength", options.strength)):
        if value is not None and options.image is None:
            raise UsageError(f"{option}: requires --image")
    if options.strength is not None and not 0 < options.strength <= 1:
        raise UsageError(f"--strength: {options.strength}, needs more than 0 and at most 1")


def _split_model_and_prompt(first: str, second: str | None) -> tuple[str, str]:
    """Return model and prompt."""
    from wgpu_backend.images.bundled import PICTURES

    if second is not None:
        return first, second
    if first == PICTURES or exists(str(Path(first, "model_index.json"))):
        raise UsageError(f"{first}: a model; give a prompt after it")
    return PICTURES, first


def _list_files(out: Path, count: int) -> list[Path]:
    """Return the files to write, checked before the pictures are made."""
    if out.suffix.lower() != ".png":
        raise UsageError(f"{out}: images are written as PNG, needs a name that ends in .png")
    if count == 1:
        return [require_writable(out)]
    return [require_writable(out.with_stem(f"{out.stem}-{i + 1}")) for i in range(count)]


def _generate(
    pipeline: Pipeline, prompt: str, options: PictureOptions, callback: StepCallback
) -> Generated:
    return pipeline.generate(
        prompt,
        options.negative,
        num_inference_steps=options.steps,
        guidance_scale=options.guidance,
        image=options.image,
        mask_image=options.mask,
        strength=options.strength,
        height=options.height,
        width=options.width,
        seed=options.seed,
        num_images_per_prompt=options.count,
        callback=callback,
    )


def _chain(*callbacks: StepCallback) -> StepCallback:
    """Combine several callbacks."""

    def call(step: Step) -> None:
        for each in callbacks:
            each(step)

    return call


def _make_metadata(prompt: str, options: PictureOptions) -> dict[str, object]:
    """Return the metadata of a picture's file."""
    return {
        "prompt": prompt,
        "negative_prompt": options.negative,
        "guidance": options.guidance,
        "image": options.image and options.image.name,
        "strength": options.strength,
    }


def _write(
    files: list[Path], generated: Generated, facts: dict[str, object], seconds: float
) -> None:
    from wgpu_backend.images.pictures import save_png

    pictures = cast("list[Image]", generated.images)
    for file, picture, seed in zip(files, pictures, generated.seeds, strict=True):
        save_png(picture, file, {**facts, "seed": seed})
        size = f"{picture.width} × {picture.height}"
        note(f"{file}: {size}, seed {seed}, {facts['steps']} steps, {human_seconds(seconds)}")


@contextmanager
def _show_progress(prompt: str, options: PictureOptions) -> Generator[StepCallback]:
    """Show the progress: a bar, or the picture itself while it forms."""
    if options.preview and is_terminal(sys.stderr):
        yield _Screen().show
        return
    count = [0]
    with bar(prompt) as move:

        def call(step: Step) -> None:
            count[0] += 1
            if move is not None:
                move(count[0] / (step.count * options.count))

        yield call


class _Screen:
    """A picture in a terminal, drawn over the former one."""

    _rows = 0

    def show(self, step: Step) -> None:
        """Draw the picture of a step, and the number of the step."""
        from wgpu_backend.images.pictures import to_picture

        lines = render_half_blocks(to_picture(step.preview()), *_terminal_pixels())
        # A new image begins below the last one, its next steps are drawn over it.
        up = f"\x1b[{self._rows}A" if self._rows and step.index else ""
        self._rows = len(lines) + 1
        text = harmless(f"step {step.index + 1} of {step.count}")
        sys.stderr.write(up + "".join(f"{line}\x1b[K\n" for line in [*lines, text]))
        sys.stderr.flush()


def _terminal_pixels() -> tuple[int, int]:
    import shutil

    columns, rows = shutil.get_terminal_size()
    return min(columns, 64), max(2 * (rows - 2), 2)


def render_half_blocks(picture: Image, columns: int, rows: int) -> list[str]:
    """Render a picture as lines of text, two pixels per character.

    Parameters
    ----------
    columns, rows : int
        Most pixels in each direction.
    """
    import numpy as np

    scale = min(columns / picture.width, rows / picture.height, 1.0)
    width = max(round(picture.width * scale), 1)
    # Even, since each character shows two pixels, one above the other.
    height = max(round(picture.height * scale) // 2, 1) * 2
    pixels = np.asarray(picture.convert("RGB").resize((width, height))).tolist()
    return [
        "".join(map(_render_pair, *pair)) + "\x1b[0m"
        for pair in zip(*[iter(pixels)] * 2, strict=True)
    ]


def _render_pair(upper: list[int], lower: list[int]) -> str:
    """Return a half-block character with different colours of its upper and lower half."""
    over, under = (";".join(map(str, colour)) for colour in (upper, lower))
    return f"\x1b[38;2;{over}m\x1b[48;2;{under}m▀"
