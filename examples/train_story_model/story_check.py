"""Measure a story model: held-out perplexity, and how often a story follows its request."""

import random
from collections import defaultdict
from dataclasses import dataclass

import story_grammar as grammar
import torch
from story_model import StoryModel
from story_tokenizer import ASSISTANT, BEGIN, END, turn
from tokenizers import Tokenizer
from torch.nn import functional

MAX_TOKENS = 360  # the longest story of the grammar has under 300


@dataclass(frozen=True, slots=True)
class Told:
    """A request and the model's answer to it."""

    example: grammar.Example
    text: str
    ended: bool

    @property
    def follows(self) -> bool:
        """Return whether the story has everything that was requested and is finished."""
        ask, text = self.example.ask, self.text
        hero = ask.hero is None or ask.hero in text.lower()
        wanted = (ask.name, ask.thing, ask.thing_adjective, ask.place)
        return self.ends_well and hero and all(word is None or word in text for word in wanted)

    @property
    def ends_well(self) -> bool:
        """Return whether the model ended the story itself, after a full sentence."""
        return self.ended and self.text.endswith((".", "!", "?", '"'))


@dataclass(frozen=True, slots=True)
class Report:
    """Figures over a set of examples."""

    perplexity: float  # of a story's tokens, given the request
    following: float  # share of answers that follow, drawn at a temperature
    greedy_following: float
    ending: float
    samples: list[Told]

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.3f}, follows the request {self.following:.1%} "
            f"(greedy {self.greedy_following:.1%}), ends properly {self.ending:.1%}"
        )


def held_out_examples(
    count: int, seed: int, vocabulary: grammar.Vocabulary | None = None
) -> list[grammar.Example]:
    """Draw `count` examples whose combination of hero, name and thing was not trained on."""
    rng = random.Random(seed)
    examples: list[grammar.Example] = []
    while len(examples) < count:
        example = grammar.make_example(rng, vocabulary)
        if example.story.held_out:
            examples.append(example)
    return examples


@torch.no_grad()
def perplexity(model: StoryModel, tokenizer: Tokenizer, examples: list[grammar.Example]) -> float:
    """Compute the perplexity per token of the stories and their end token, given the requests."""
    start = tokenizer.token_to_id(ASSISTANT)
    total, count = 0.0, 0
    for example in examples:
        text = f"{BEGIN}{turn(example.request)}{example.story.text}{END}"
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
        first = ids[0].tolist().index(start)
        logits = model(ids[:, :-1])[0, first:]
        total += functional.cross_entropy(logits, ids[0, first + 1 :], reduction="sum").item()
        count += len(logits)
    return float(torch.tensor(total / count).exp())


def answers(
    model: StoryModel,
    tokenizer: Tokenizer,
    examples: list[grammar.Example],
    temperature: float,
    seed: int = 0,
) -> list[Told]:
    """Let the model answer each request; requests of one length run as one batch."""
    by_length: dict[int, list[tuple[grammar.Example, list[int]]]] = defaultdict(list)
    for example in examples:
        ids = tokenizer.encode(BEGIN + turn(example.request), add_special_tokens=False).ids
        by_length[len(ids)].append((example, ids))
    rng, end = torch.Generator().manual_seed(seed), tokenizer.token_to_id(END)
    told: list[Told] = []
    for _, group in sorted(by_length.items()):
        prompts = torch.tensor([ids for _, ids in group])
        lines = model.generate(prompts, MAX_TOKENS, temperature, end, rng)
        for (example, _), line in zip(group, lines, strict=True):
            told.append(Told(example, tokenizer.decode(line), line[-1] == end))
    return told


def share(flags: list[bool]) -> float:
    """Return the part of `flags` that is true."""
    return sum(flags) / len(flags)


def examine(
    model: StoryModel,
    tokenizer: Tokenizer,
    examples: list[grammar.Example],
    temperature: float = 0.7,
) -> Report:
    """Measure the model on `examples`; rates are over requests that ask for something."""
    asking = [example for example in examples if example.ask.name or example.ask.thing]
    drawn = answers(model, tokenizer, asking, temperature)
    greedy = answers(model, tokenizer, asking, 0.0)
    return Report(
        perplexity=perplexity(model, tokenizer, examples),
        following=share([told.follows for told in drawn]),
        greedy_following=share([told.follows for told in greedy]),
        ending=share([told.ends_well for told in drawn]),
        samples=drawn,
    )
