"""Prompt lookup: draft tokens are the continuation of an earlier occurrence of an n-gram."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.batching.drafts import Wanted

# Lengths of n-grams, longest first; shorter ones match by chance.
SIZES = (5, 4, 3)


class Index:
    """An index of the last occurrence of each n-gram of a text.

    Parameters
    ----------
    tokens : sequence of int
        Tokens of the text, which may be appended to but not changed.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self._seen = 0
        self._behind: dict[tuple[int, ...], int] = {}

    def following(self, count: int) -> list[int]:
        """Return the tokens after the last earlier occurrence of the text's suffix."""
        self._take_in()
        for size in SIZES:
            found = self._behind.get(tuple(self.tokens[-size:]))
            if found is not None and len(self.tokens) >= size:
                return list(self.tokens[found : found + count])
        return []

    def _take_in(self) -> None:
        """Index the position after each n-gram, except at the end of the text."""
        for end in range(max(self._seen, 1), len(self.tokens)):
            for size in SIZES:
                if end >= size:
                    self._behind[tuple(self.tokens[end - size : end])] = end
        self._seen = len(self.tokens)


class NGrams:
    """A drafter that looks up n-grams in a choice's own prompt and answer; needs no model."""

    def __init__(self) -> None:
        self._of: dict[Completion, Index] = {}

    def guesses(self, wanted: Wanted) -> Sequence[list[int]]:
        """Return the tokens after the last occurrence of each choice's newest tokens."""
        return [self._index(each).following(count) for each, count in wanted]

    def _index(self, completion: Completion) -> Index:
        if completion not in self._of:
            self._of[completion] = Index(completion.tokens)
        return self._of[completion]

    def forget(self, completion: Completion) -> None:
        """Drop the index of a choice."""
        self._of.pop(completion, None)

    def close(self) -> None:
        """Drop all indices."""
        self._of.clear()
