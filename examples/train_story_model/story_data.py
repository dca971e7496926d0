"""Endless training rows: documents from the grammar, packed to a fixed length."""

import random
from collections.abc import Iterator

import numpy as np
import story_grammar
import story_requests
from story_tokenizer import BEGIN, END, turn
from tokenizers import Tokenizer

CHUNK = 512  # documents tokenized at once


def training_example(rng: random.Random) -> story_grammar.Example:
    """Draw an example that is not kept for evaluation."""
    while (example := story_grammar.make_example(rng)).story.held_out:
        pass
    return example


def bare_story(rng: random.Random) -> str:
    """Draw a story without a request, from words that need no request."""
    while (story := story_grammar.tell(story_grammar.Ask(), rng)).held_out:
        pass
    return story.text


def document(rng: random.Random) -> str:
    """Draw a chat of one turn, at times of two, or a story without a request."""
    choice = rng.random()
    if choice < 0.08:
        return f"{BEGIN}{bare_story(rng)}{END}"
    example = training_example(rng)
    chat = f"{BEGIN}{turn(example.request)}{example.story.text}{END}"
    if choice > 0.87:
        again = training_example(rng)
        request = again.request
        if again.ask == story_grammar.Ask():
            request = rng.choice(story_requests.AGAIN)
        chat += f"{turn(request)}{again.story.text}{END}"
    return chat


def documents(rng: random.Random) -> Iterator[str]:
    """Yield all documents that follow from the state of `rng`, without an end."""
    while True:
        yield document(rng)


def rows(tokenizer: Tokenizer, rng: random.Random, length: int) -> Iterator[list[int]]:
    """Pack documents into rows of `length` tokens.

    Each row starts with a new document, as each chat does; the last one of a row is cut off.
    """
    row: list[int] = []
    source = documents(rng)
    while True:
        texts = [next(source) for _ in range(CHUNK)]
        for encoded in tokenizer.encode_batch(texts, add_special_tokens=False):
            row += encoded.ids
            if len(row) >= length:
                yield row[:length]
                row = []


def batches(
    tokenizer: Tokenizer, rng: random.Random, length: int, size: int
) -> Iterator[np.ndarray]:
    """Yield batches of rows: (size, length) of int64."""
    source = rows(tokenizer, rng, length)
    while True:
        yield np.array([next(source) for _ in range(size)], dtype=np.int64)
