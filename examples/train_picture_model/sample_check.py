#!/usr/bin/env python3
"""Measure a picture model: the share of held-out sentences whose image is right.

python examples/train_picture_model/sample_check.py pictures
"""

import argparse
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import picture_file
import torch
from picture_check import problems
from picture_grammar import Scene, make_scene
from picture_model import PictureModel, sample
from picture_words import encode

STEPS, GUIDANCE = 20, 1.2
ROWS = 50  # pictures at once


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a set of sentences."""

    count: int
    wrong: list[tuple[str, list[str]]]  # sentences, and what is wrong with their pictures

    def __str__(self) -> str:
        lines = [f"  {sentence}: {'; '.join(found)}" for sentence, found in self.wrong]
        right = self.count - len(self.wrong)
        return "\n".join([*lines, f"{right} of {self.count} pictures are right"])


def held_out(count: int, seed: int) -> list[tuple[Scene, str]]:
    """Draw scenes whose combination was never trained on, with a sentence of each."""
    rng = random.Random(seed)
    found: list[tuple[Scene, str]] = []
    while len(found) < count:
        scene = make_scene(rng)
        if scene.held_out:
            found.append((scene, scene.sentence(rng)))
    return found


def pictures(model: PictureModel, sentences: list[str], seed: int) -> np.ndarray:
    """Generate images: (sentences, side, side, 3) of 0 to 1."""
    words = torch.tensor([encode(text, model.config.words) for text in sentences])
    side, generator = model.config.side, torch.Generator().manual_seed(seed)
    noise = torch.randn(len(words), side, side, 3, generator=generator)
    parts = [
        sample(model, w, x, STEPS, GUIDANCE, picture_file.SHIFT)
        for w, x in zip(words.split(ROWS), noise.split(ROWS), strict=True)
    ]
    return (torch.cat(parts).clamp(-1, 1) * 0.5 + 0.5).numpy()


def report(model: PictureModel, count: int, seed: int = 9) -> Report:
    """Generate an image of each of `count` held-out sentences and check it."""
    asked = held_out(count, seed)
    made = pictures(model, [sentence for _, sentence in asked], seed)
    looked = [(said, problems(scene, x)) for (scene, said), x in zip(asked, made, strict=True)]
    return Report(count, [(said, found) for said, found in looked if found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = report(picture_file.load(options.folder), options.count, options.seed)
    print(found)
    print(Counter(problem.split()[0] for _, each in found.wrong for problem in each))


if __name__ == "__main__":
    main()
