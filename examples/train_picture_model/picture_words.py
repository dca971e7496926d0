"""Encoding of sentences as word numbers, padded with the empty word 0."""

import re

from picture_grammar import words

VOCABULARY = ["", *words()]
NUMBERS = {word: number for number, word in enumerate(VOCABULARY)}


def encode(sentence: str, length: int) -> list[int]:
    """Encode the first `length` words of `sentence` that are in the vocabulary."""
    found = [NUMBERS[word] for word in re.findall("[a-z]+", sentence.lower()) if word in NUMBERS]
    return (found + [0] * length)[:length]
