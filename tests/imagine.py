"""The bundled picture model: the share of held-out sentences whose picture is right.

    python -m tests.imagine [--count N] [--seed S] [--device DEVICE] [--grid FILE.png]

Sentences are of combinations that training never saw; a checker of the training example reads the
pictures from their pixels. What is wrong is listed, then the figure. `--grid` writes the first
sixteen pictures side by side.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from wgpu_backend import images

FOLDER = Path(__file__).parents[1] / "examples" / "train_picture_model"
MODULES = ("picture_grammar", "picture_draw", "picture_check", "picture_words", "shapes")
COLUMNS = 4


def example() -> dict[str, Any]:
    """Modules of the training example, by name."""
    sys.path.insert(0, str(FOLDER))
    try:
        return {name: __import__(name) for name in MODULES}
    finally:
        sys.path.remove(str(FOLDER))


def held_out(made: dict[str, Any], count: int, seed: int) -> list[tuple[Any, str]]:
    """Scenes that training never saw, each with a sentence of it."""
    rng = random.Random(seed)
    found: list[tuple[Any, str]] = []
    while len(found) < count:
        scene = made["picture_grammar"].make_scene(rng)
        if scene.held_out:
            found.append((scene, scene.sentence(rng)))
    return found


def looked_at(
    pipeline: Any, asked: Sequence[tuple[Any, str]], find: Any, **options: Any
) -> list[tuple[str, list[str], np.ndarray]]:
    """Each sentence with what is wrong with its picture, and the picture."""
    found = []
    for number, (scene, sentence) in enumerate(track(asked, "pictures")):
        made = pipeline.generate(sentence, seed=number, output_type="np", **options).images[0]
        found.append((sentence, find(scene, made), made))
    return found


def grid(pictures: Sequence[np.ndarray]) -> Image.Image:
    """Pictures in rows of `COLUMNS`, twice as large."""
    rows = [np.concatenate(pictures[i : i + COLUMNS], 1) for i in range(0, len(pictures), COLUMNS)]
    whole = Image.fromarray((np.concatenate(rows) * 255).round().astype(np.uint8))
    return whole.resize((2 * whole.width, 2 * whole.height), Image.Resampling.NEAREST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=9, help="of the sentences")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device")
    parser.add_argument("--grid", type=Path, metavar="FILE.png")
    options = parser.parse_args()
    console, made = Console(highlight=False, markup=False), example()
    asked = held_out(made, options.count, options.seed)
    with images.load(device=options.device) as pipeline:
        find = made["picture_check"].problems
        found = looked_at(pipeline, asked, find, num_inference_steps=options.steps)
    for sentence, wrong, _ in found:
        if wrong:
            console.print(f"{sentence}: {'; '.join(wrong)}")
    right = sum(not wrong for _, wrong, _ in found)
    console.print(f"{right} of {len(found)} pictures are right ({right / len(found):.1%})")
    if options.grid is not None:
        grid([picture for *_, picture in found[: COLUMNS**2]]).save(options.grid, optimize=True)
        console.print("\n".join(sentence for sentence, *_ in found[: COLUMNS**2]))


if __name__ == "__main__":
    main()
