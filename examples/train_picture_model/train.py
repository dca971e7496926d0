#!/usr/bin/env python3
"""Train the picture model on drawings of our own generator and write it as a pipeline's folder.

    python examples/train_picture_model/train.py --out pictures --minutes 60

Needs `torch` and `safetensors` besides NumPy. A run that was interrupted goes on from its
checkpoint, beside the folder. The last line is the share of held-out sentences whose picture is
right, measured on what was written.
"""

import argparse
import copy
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import picture_file
import sample_check
import torch
from picture_draw import background_of, paint, place
from picture_grammar import make_scene
from picture_model import PictureConfig, PictureModel, loss
from picture_words import VOCABULARY, encode
from shapes import coverage
from torch import Tensor

LAST_RATE = 0.01  # as a share of the peak
WARMUP_STEPS = 50
SAVE_EVERY = 200  # steps
NOISE_MEAN, NOISE_SPREAD = 0.5, 1.4  # of the logit of the share of noise
NO_WORDS = 0.1  # share of drawings that come without their sentence
MOST_SECONDS = 20.0  # of a step; one that took longer was paused, or compiled
MEMORY = 0.998  # of the averaged weights, a step


@dataclass(slots=True)
class Clock:
    """The progress of the training, 0 to 1: by steps if their number is given, else by time."""

    steps: int | None
    seconds: float
    step: int = 0
    spent: float = 0.0

    @property
    def progress(self) -> float:
        """Share of the training that is done."""
        return self.step / self.steps if self.steps is not None else self.spent / self.seconds


class Optimizer:
    """Muon for the matrices of blocks and for convolutions but the last, AdamW for the rest.

    A convolution is a matrix to Muon: outputs by all that they are made of.
    """

    def __init__(self, model: PictureModel) -> None:
        named = list(model.named_parameters())
        parts = ("blocks", "painter", "near", "neighbours", "overview", "glance")
        inner = [
            w
            for name, w in named
            if w.dim() == 2 and name.startswith(parts) and "offset" not in name
        ]
        convs = [w for name, w in named if w.dim() == 4 and "leave" not in name]
        others = [w for _, w in named if all(w is not each for each in (*inner, *convs))]
        self.flat = [(w, torch.nn.Parameter(w.detach().flatten(1))) for w in convs]
        matrices = [*inner, *(flat for _, flat in self.flat)]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
        ]

    def step(self, rate: float) -> None:
        """Update the weights by their gradients, then clear the gradients."""
        for weight, flat in self.flat:
            assert weight.grad is not None
            flat.grad, weight.grad = weight.grad.flatten(1), None
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Return a linear warm-up to `peak`, then half a cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return peak * min(1.0, (step + 1) / WARMUP_STEPS) * (LAST_RATE + (1 - LAST_RATE) * cosine)


def batch(rows: int, words: int, seed: str) -> tuple[Tensor, Tensor, Tensor]:
    """Draw pictures, (rows, side, side, 3) in -1 to 1, outlines, and the words of sentences."""
    rng = random.Random(seed)
    drawings, outlines, sentences = [], [], []
    while len(drawings) < rows:
        scene = make_scene(rng)
        if scene.held_out:
            continue
        background = background_of(scene)
        things = place(scene, background, rng)
        drawings.append(paint(background, things))
        said, order = scene.said(rng)
        named = [things[n] for n in order]
        shares = [coverage(t.shape, t.x, t.y, t.radius) for t in named]
        outlines.append(np.stack([*shares, np.zeros_like(shares[0])][:2]))
        sentences.append(encode(said if rng.random() >= NO_WORDS else "", words))
    return (
        torch.from_numpy(np.stack(drawings)) * 2 - 1,
        torch.from_numpy(np.stack(outlines)),
        torch.tensor(sentences),
    )


def shares_of_noise(rows: int) -> Tensor:
    """Draw one of each `rows`-th part of a logit-normal, so that a batch has all sorts."""
    even = (torch.arange(rows) + torch.rand(rows)) / rows
    return torch.sigmoid(NOISE_MEAN + NOISE_SPREAD * torch.special.ndtri(even.clamp(1e-4, 0.9999)))


@torch.no_grad()
def remember(average: PictureModel, model: PictureModel, step: int) -> None:
    """Move the averaged weights towards the trained ones, quickly at first."""
    share = 1 - min(MEMORY, (step + 1) / (step + 10))
    for kept, weight in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(weight, share)


class Training:
    """A model, its average, the optimiser and the clock: all that a checkpoint keeps."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.options = options
        self.model = PictureModel(PictureConfig(len(VOCABULARY)))
        self.average = copy.deepcopy(self.model)
        self.optimizer = Optimizer(self.model)
        self.clock = Clock(options.steps, options.minutes * 60)
        self.loss = torch.compile(loss, dynamic=False) if options.compile else loss
        self.checkpoint = options.out.with_name(options.out.name + ".checkpoint")
        if self.checkpoint.exists():
            self.restore()
        elif options.start is not None:
            self.take(torch.load(options.start)["average"])

    def save(self) -> None:
        """Write the averaged model, and the checkpoint at once or not at all."""
        picture_file.save(self.options.out, self.average)
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": [part.state_dict() for part in self.optimizer.parts],
            "clock": (self.clock.step, self.clock.spent),
        }
        unfinished = self.checkpoint.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)

    def restore(self) -> None:
        """Continue from the checkpoint."""
        state = torch.load(self.checkpoint)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for part, kept in zip(self.optimizer.parts, state["optimizer"], strict=True):
            part.load_state_dict(kept)
        self.clock.step, self.clock.spent = state["clock"]
        print(f"going on from step {self.clock.step}")

    def take(self, weights: dict[str, Tensor]) -> None:
        """Copy the weights of another model that have the same name and shape."""
        own = self.model.state_dict()
        fit = {name: w for name, w in weights.items() if name in own and w.shape == own[name].shape}
        self.model.load_state_dict(fit, strict=False)
        self.average = copy.deepcopy(self.model)
        print(f"{len(fit)} of {len(own)} tensors from another checkpoint")

    def run(self) -> None:
        """Train to the end, with a progress line every few seconds."""
        average, shown, clock = 0.0, 0.0, self.clock
        first, last = clock.step, time.monotonic()
        while clock.progress < 1:
            now = self.step()
            average = now if clock.step == first else 0.98 * average + 0.02 * now
            clock.step += 1
            took, last = time.monotonic() - last, time.monotonic()
            clock.spent += min(took, MOST_SECONDS)
            if last - shown > self.options.every:
                shown = last
                speed = clock.step * self.options.rows / clock.spent
                line = f"step {clock.step:5d}  {clock.progress:4.0%}  loss {average:.4f}"
                print(f"{line}  {speed:.1f} pictures/s", flush=True)
            if clock.step % SAVE_EVERY == 0:
                self.save()
        self.save()

    def step(self) -> float:
        """Update once; return the loss."""
        options, model, clock = self.options, self.model, self.clock
        seed = f"{options.seed} {clock.step}"
        drawing, outlines, words = batch(options.rows, model.config.words, seed)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            error = self.loss(model, drawing, outlines, words, shares_of_noise(len(drawing)))
        error.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.optimizer.step(learning_rate(options.rate, clock.step, clock.progress))
        remember(self.average, model, clock.step)
        return error.item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--minutes", type=float, default=60.0, help="training time")
    parser.add_argument("--steps", type=int, help="training length in steps, instead of minutes")
    parser.add_argument("--rate", type=float, default=4e-3, help="the highest learning rate")
    parser.add_argument("--rows", type=int, default=64, help="drawings a step")
    parser.add_argument("--start", type=Path, help="another model's checkpoint, to begin with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where it pays")
    parser.add_argument("--compile", action="store_true", help="fuse operations (needs a compiler)")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between progress lines")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    Training(options).run()
    model = picture_file.load(options.out)
    weights = sum(weight.numel() for weight in model.parameters())
    nbytes = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {nbytes:,} bytes, {weights:,} weights")
    print(sample_check.report(model, 200))


if __name__ == "__main__":
    main()
