#!/usr/bin/env python3
"""Measure a story model from its GGUF file, or let it answer requests.

    python examples/train_story_model/sample_check.py story.gguf
    python examples/train_story_model/sample_check.py story.gguf --ask "a story about a dragon"

Needs `torch`, as the training does; it runs the weights as they are in the file.
"""

import argparse
from pathlib import Path

import story_check
import story_gguf
import story_grammar
import torch
from story_model import StoryModel
from tokenizers import Tokenizer


def report(model: StoryModel, tokenizer: Tokenizer, requests: int, samples: int = 3) -> None:
    """Print the figures for three kinds of held-out requests, and some stories."""
    kinds = {
        "everyday words": story_grammar.everyday_vocabulary(),
        "with rare and invented words": story_grammar.Vocabulary(),
        "words never seen": story_grammar.unseen_vocabulary(),
    }
    shown: list[story_check.Told] = []
    for seed, (kind, vocabulary) in enumerate(kinds.items(), start=1001):
        examples = story_check.held_out_examples(requests, seed, vocabulary)
        result = story_check.examine(model, tokenizer, examples)
        print(f"held out, {kind}: {result}", flush=True)
        shown = shown or result.samples[:: max(1, len(result.samples) // samples)]
    for told in shown[:samples]:
        show(told)


def show(told: story_check.Told) -> None:
    print(f"\n> {told.example.request}\n{told.text}")


def answer(model: StoryModel, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    """Print the answer to each request of the command line."""
    for request in options.ask:
        story = story_grammar.Story(*[""] * 6)
        example = story_grammar.Example(request, story_grammar.Ask(), story)
        for told in story_check.answers(
            model, tokenizer, [example], options.temperature, options.seed
        ):
            show(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--ask", nargs="*", default=[], help="requests to answer")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=300, help="held-out requests to measure on")
    parser.add_argument("--samples", type=int, default=3, help="stories to show of those")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = story_gguf.load(options.model)
    if options.ask:
        answer(model, tokenizer, options)
    else:
        report(model, tokenizer, options.requests, options.samples)


if __name__ == "__main__":
    main()
