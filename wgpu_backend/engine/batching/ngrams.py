"""Prompt lookup: guesses that what followed some tokens before follows them again."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.batching.drafts import Wanted

SIZES = (5, 4, 3)  # tokens that have to be alike, the most first; fewer are so by chance


class Index:
    """Where a text had which tokens last.

    Parameters
    ----------
    tokens : sequence of int
        May grow, but not change.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self._seen = 0
        self._behind: dict[tuple[int, ...], int] = {}

    def following(self, count: int) -> list[int]:
        """Tokens that came behind the longest end of the text that was there before."""
        self._take_in()
        for size in SIZES:
            found = self._behind.get(tuple(self.tokens[-size:]))
            if found is not None and len(self.tokens) >= size:
                return list(self.tokens[found : found + count])
        return []

    def _take_in(self) -> None:
        """Note what stands behind every few tokens, but the last ones, which nothing follows."""
        for end in range(max(self._seen, 1), len(self.tokens)):
            for size in SIZES:
                if end >= size:
                    self._behind[tuple(self.tokens[end - size : end])] = end
        self._seen = len(self.tokens)


class NGrams:
    """Guesses from a choice's own prompt and answer; costs no pass."""

    def __init__(self) -> None:
        self._of: dict[Completion, Index] = {}

    def guesses(self, wanted: Wanted) -> Sequence[list[int]]:
        """What followed the newest tokens where they stood last."""
        return [self._index(each).following(count) for each, count in wanted]

    def _index(self, completion: Completion) -> Index:
        if completion not in self._of:
            self._of[completion] = Index(completion.tokens)
        return self._of[completion]

    def forget(self, completion: Completion) -> None:
        """Forget a text."""
        self._of.pop(completion, None)

    def close(self) -> None:
        """Forget all texts."""
        self._of.clear()
