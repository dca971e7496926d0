#!/usr/bin/env python3
"""Train the model that sees on drawn pictures, and write it as two GGUF files.

    python examples/train_eyes_model/train.py --out eyes.gguf --minutes 10

Needs `torch` besides the package's own dependencies. The last lines are the share of right answers
to pictures that it was not trained on, asked of the written files.
"""
# torch is none of the package's dependencies, and other modules are in this folder and the story's.
# pyright: reportMissingImports=false

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train_story_model"))

import eyes_data
import eyes_gguf
import numpy as np
import torch
from eyes_model import EyesModel, TowerConfig
from story_model import StoryConfig
from story_tokenizer import ASSISTANT, BEGIN, END, USER, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

import wgpu_backend as wb
from wgpu_backend.nn.vision.processing import crop_centre, fit_shortest, normalise, resize

ROWS = 24
WARMUP_STEPS = 50
IGNORED = -100
TOKENIZER_DOCUMENTS = 4000
# Questions without a picture, pictures after their question, and turns with a picture of their own
# after the first one, as shares.
BLIND, LATE, ANOTHER = 0.06, 0.5, 0.3


def prepare(picture: np.ndarray, side: int) -> Tensor:
    """Return what the tower sees of a picture: (3, side, side)."""
    scaled = resize(picture, *fit_shortest(picture.shape[:2], side))
    seen = normalise(crop_centre(scaled, (side, side)), eyes_gguf.MEAN, eyes_gguf.DEVIATION)
    return torch.from_numpy(np.ascontiguousarray(seen.transpose(2, 0, 1)))


class Examples:
    """Conversations about pictures as rows of tokens."""

    def __init__(self, tokenizer: Tokenizer, config: TowerConfig, seed: int) -> None:
        self.tokenizer, self.config, self.rng = tokenizer, config, random.Random(seed)

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self.tokenizer.encode(text).ids

    def draw(self) -> tuple[list[int], list[bool], list[tuple[int, Tensor]]]:
        """Draw a conversation: tokens, which of them are answers, places and pixels of pictures."""
        rng, scene = self.rng, eyes_data.draw_scene(self.rng)
        tokens, learnt = self.ids(BEGIN), [False]
        pictures: list[tuple[int, Tensor]] = []
        blind = rng.random() < BLIND
        for number, (kind, question, answer) in enumerate(eyes_data.draw_turns(scene, rng)):
            head = self.ids(USER)
            is_new = number > 0 and rng.random() < ANOTHER
            if is_new:
                # The answer is about the picture that was shown last.
                scene, blind = eyes_data.draw_scene(rng), False
            if number > 0:
                question, answer = eyes_data.ask(kind, scene, rng), scene.answers()[kind]
            asked = self.ids(question)
            if is_new or (number == 0 and not blind):
                before = asked if rng.random() < LATE else []
                pixels = prepare(eyes_data.draw_picture(scene, rng), self.config.image)
                pictures.append((len(tokens) + len(head) + len(before), pixels))
                head += before + [0] * self.config.patches
                asked = asked[len(before) :]
            head += asked + self.ids(END + ASSISTANT)
            said = self.ids((eyes_data.NO_PICTURE if blind else answer) + END)
            tokens += head + said
            learnt += [False] * len(head) + [True] * len(said)
        return tokens, learnt, pictures

    def batch(self, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Draw a batch: tokens, targets, and of pictures pixels, rows and places."""
        drawn = [self.draw() for _ in range(rows)]
        longest = max(len(tokens) for tokens, *_ in drawn)
        tokens = torch.zeros(rows, longest, dtype=torch.long)
        targets = torch.full((rows, longest), IGNORED)
        for row, (own, learnt, _) in enumerate(drawn):
            tokens[row, : len(own)] = torch.tensor(own)
            wanted = [t if known else IGNORED for t, known in zip(own, learnt, strict=True)]
            targets[row, : len(own) - 1] = torch.tensor(wanted[1:])
        shown = [(row, place, p) for row, (*_, own) in enumerate(drawn) for place, p in own]
        size = (0, 3, self.config.image, self.config.image)
        pixels = torch.stack([p for *_, p in shown]) if shown else torch.zeros(size)
        where = torch.tensor([(row, place) for row, place, _ in shown]).reshape(-1, 2)
        return tokens, targets, pixels, where[:, 0], where[:, 1]


def make_tokenizer(seed: int, vocab: int) -> Tokenizer:
    """Learn the words of the questions and answers."""
    rng = random.Random(seed)
    texts = []
    for _ in range(TOKENIZER_DOCUMENTS):
        turns = eyes_data.draw_turns(eyes_data.draw_scene(rng), rng)
        texts += [text for _, question, answer in turns for text in (question, answer)]
    return train_tokenizer([*texts, eyes_data.NO_PICTURE], vocab, eyes_gguf.CARD.specials)


def train(model: EyesModel, examples: Examples, options: argparse.Namespace) -> None:
    """Train in place, with a progress line every few seconds."""
    inside = [w for n, w in model.named_parameters() if w.dim() == 2 and ".blk." in n]
    known = {id(w) for w in inside}
    outside = [w for w in model.parameters() if id(w) not in known]
    optimizers = [
        torch.optim.Muon(inside, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outside, weight_decay=0.0, betas=(0.9, 0.97)),
    ]
    begin, step, average, shown, progress = time.monotonic(), 0, 0.0, 0.0, 0.0
    while progress < 1:
        tokens, targets, *pictures = examples.batch(ROWS)
        logits = model(tokens, *pictures)
        loss = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = options.rate * min(1.0, (step + 1) / WARMUP_STEPS) * (1.02 - progress)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        share = max(0.05, 1 / (step + 1))
        average, step = (1 - share) * average + share * loss.item(), step + 1
        elapsed = time.monotonic() - begin
        progress = step / options.steps if options.steps else elapsed / (60 * options.minutes)
        if elapsed - shown > options.every:
            shown = elapsed
            print(f"step {step:5d}  {progress:4.0%}  loss {average:.4f}", flush=True)


def check(path: Path, count: int, seed: int) -> dict[str, float]:
    """Ask the written files; return the share of right answers by kind of question."""
    rng = random.Random(seed)
    right: dict[str, list[bool]] = {kind: [] for kind in eyes_data.QUESTIONS}
    with wb.load(path, device="cpu") as model:
        for _ in range(count):
            scene = eyes_data.draw_scene(rng)
            picture = eyes_data.draw_picture(scene, rng)
            kind = rng.choice(list(eyes_data.QUESTIONS))
            part = {"type": "image", "image": picture}
            parts = [part, {"type": "text", "text": eyes_data.ask(kind, scene, rng)}]
            # Users put the picture before the question, or after it, and show another one later.
            content = parts if rng.random() < LATE else parts[::-1]
            messages: list[dict[str, object]] = [{"role": "user", "content": content}]
            if rng.random() < ANOTHER:
                messages = [*draw_earlier(rng), *messages]
            said = "".join(model.chat(messages, options={"temperature": 0, "num_predict": 24}))
            right[kind].append(said == scene.answers()[kind])
    return {kind: sum(found) / max(len(found), 1) for kind, found in right.items()}


def draw_earlier(rng: random.Random) -> list[dict[str, object]]:
    """Draw a question about another picture, and its answer."""
    scene = eyes_data.draw_scene(rng)
    part = {"type": "image", "image": eyes_data.draw_picture(scene, rng)}
    asked = [part, {"type": "text", "text": eyes_data.ask("colour", scene, rng)}]
    said: dict[str, object] = {"role": "assistant", "content": scene.answers()["colour"]}
    return [{"role": "user", "content": asked}, said]


def start(options: argparse.Namespace) -> tuple[EyesModel, Tokenizer]:
    """Make a new model with its tokenizer, or take both from the files to resume."""
    if options.resume is not None:
        return eyes_gguf.load(options.resume)
    tokenizer = make_tokenizer(options.seed, options.vocab)
    text = StoryConfig(
        vocab=tokenizer.get_vocab_size(),
        context=512,
        hidden=96,
        feed_forward=256,
        layers=3,
        heads=3,
        kv_heads=1,
    )
    return EyesModel(TowerConfig(), text), tokenizer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the language model's file")
    parser.add_argument("--minutes", type=float, default=10.0, help="training time")
    parser.add_argument("--steps", type=int, help="training length in steps, instead of minutes")
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--resume", type=Path, help="the language model's file to go on from")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--vocab", type=int, default=448)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between progress lines")
    parser.add_argument("--questions", type=int, default=300, help="questions of the check")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model, tokenizer = start(options)
    train(model, Examples(tokenizer, model.config, options.seed + 1), options)
    eyes_gguf.save(options.out, model, tokenizer)
    weights = sum(weight.numel() for weight in model.parameters())
    files = (options.out, eyes_gguf.tower_path(options.out))
    print(f"{weights:,} weights, {sum(file.stat().st_size for file in files):,} bytes")
    for kind, share in check(options.out, options.questions, options.seed + 2).items():
        print(f"{kind:10s} {share:6.1%} right")


if __name__ == "__main__":
    main()
