#!/usr/bin/env python3
"""Train the story model on stories from the grammar and write it as a GGUF file.

    python examples/train_story_model/train.py --out story.gguf --minutes 40

Needs `torch` besides the package's own dependencies. The last lines are the held-out perplexity
and how often the model tells what it was asked for, measured on the file that was written.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sample_check
import story_data
import story_gguf
import torch
from story_model import StoryConfig, StoryModel
from story_tokenizer import train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

ROWS = 8
SHORT, LONG = 256, 512  # tokens in a row: one story at first, whole chats towards the end
LAST_RATE = 0.01  # as a share of the peak
WARMUP_STEPS = 40
SAVE_EVERY = 500  # steps, so that an interrupted training leaves a model
TOKENIZER_DOCUMENTS = 20_000


@dataclass(slots=True)
class Clock:
    """The progress of the training, 0 to 1: by steps if their number is given, else by time."""

    steps: int | None
    seconds: float
    started: float
    step: int = 0
    tokens: int = 0

    @property
    def progress(self) -> float:
        """Share of the training that is done."""
        if self.steps is not None:
            return self.step / self.steps
        return (time.monotonic() - self.started) / self.seconds


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Return a linear warm-up to `peak`, then half a cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return peak * min(1.0, (step + 1) / WARMUP_STEPS) * (LAST_RATE + (1 - LAST_RATE) * cosine)


class Optimizer:
    """Muon for the matrices inside the blocks, AdamW for the embedding and the norms.

    Muon evens out the singular values of each update.
    """

    def __init__(self, model: StoryModel) -> None:
        inner = [w for name, w in model.named_parameters() if w.dim() > 1 and "blk" in name]
        outer = [w for name, w in model.named_parameters() if w.dim() == 1 or "blk" not in name]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(inner, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(outer, weight_decay=0.0, betas=(0.9, 0.97), fused=True),
        ]

    def step(self, rate: float) -> None:
        """Update the weights by their gradients, then clear the gradients."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()


def row_batches(
    tokenizer: Tokenizer, seed: int, clock: Clock, long_share: float
) -> Iterator[Tensor]:
    """Yield training batches: short rows first, long ones in the last `long_share`."""
    short = story_data.batches(tokenizer, random.Random(seed), SHORT + 1, ROWS)
    long = story_data.batches(tokenizer, random.Random(seed + 1), LONG + 1, ROWS)
    while clock.progress < 1:
        yield torch.from_numpy(next(short if clock.progress < 1 - long_share else long))


def train_step(
    model: StoryModel, optimizer: Optimizer, batch: Tensor, rate: float, *, bf16: bool
) -> float:
    """Update once on `batch` (rows, tokens + 1); return the mean loss per token in nats."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = model(batch[:, :-1])
    loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(rate)
    return loss.item()


def start(options: argparse.Namespace) -> tuple[StoryModel, Tokenizer]:
    """Make a new model with its tokenizer, or take both from the file to resume."""
    torch.manual_seed(options.seed)
    if options.resume is not None:
        model, tokenizer = story_gguf.load(options.resume)
        return model.train(), tokenizer
    rng = random.Random(options.seed)
    texts = [story_data.document(rng) for _ in range(TOKENIZER_DOCUMENTS)]
    tokenizer = train_tokenizer(texts, options.vocab)
    return StoryModel(StoryConfig(vocab=tokenizer.get_vocab_size())), tokenizer


def train(model: StoryModel, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    """Train `model` in place, with a progress line every few seconds."""
    optimizer = Optimizer(model)
    clock = Clock(options.steps, options.minutes * 60, time.monotonic())
    average, shown = 0.0, 0.0
    for batch in row_batches(tokenizer, options.seed + 1, clock, options.long_share):
        rate = learning_rate(options.rate, clock.step, clock.progress)
        loss = train_step(model, optimizer, batch, rate, bf16=options.bf16)
        average = loss if clock.step == 0 else 0.9 * average + 0.1 * loss
        clock.step += 1
        clock.tokens += batch[:, 1:].numel()
        if clock.step % SAVE_EVERY == 0:
            story_gguf.save(options.out, model, tokenizer)
        if time.monotonic() - shown > options.every:
            shown = time.monotonic()
            speed = clock.tokens / (shown - clock.started)
            print(
                f"step {clock.step:5d}  {clock.progress:4.0%}  loss {average:.4f}  "
                f"perplexity {math.exp(average):.3f}  {speed:,.0f} tokens/s",
                flush=True,
            )
    print(f"trained {clock.step} steps, {clock.tokens:,} tokens; last loss {average:.4f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the GGUF file to write")
    parser.add_argument("--minutes", type=float, default=40.0, help="training time")
    parser.add_argument("--steps", type=int, help="training length in steps, instead of minutes")
    parser.add_argument("--rate", type=float, default=4e-3, help="the highest learning rate")
    parser.add_argument(
        "--long-share", type=float, default=0.35, help="share of the training on long rows"
    )
    parser.add_argument("--resume", type=Path, help="a GGUF file to go on from")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=StoryConfig().vocab)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where it pays")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between progress lines")
    parser.add_argument("--requests", type=int, default=300, help="held-out requests to measure on")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    model, tokenizer = start(options)
    train(model, tokenizer, options)
    story_gguf.save(options.out, model, tokenizer)
    model, tokenizer = story_gguf.load(options.out)
    weights = sum(weight.numel() for weight in model.parameters())
    print(f"{options.out}: {options.out.stat().st_size:,} bytes, {weights:,} weights")
    sample_check.report(model, tokenizer, options.requests)


if __name__ == "__main__":
    main()
