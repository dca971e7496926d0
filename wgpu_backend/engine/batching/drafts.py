"""Speculative decoding: a drafter guesses tokens, and one pass verifies them.

A draft token costs a column of the pass. Tokens that the model chooses anyway are accepted, without
a pass of their own. The first other one and those after it are removed from the cache. The drafter
does not affect which tokens are chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.errors import BackendError, CacheFull
from wgpu_backend.nn.kvcache.cache import Cache

_LOG = logging.getLogger("wgpu_backend.serving")

Wanted = Sequence[tuple[Completion, int]]
"""Choices, and the number of draft tokens for each, 1 or more."""


class Drafter(Protocol):
    """The interface of a source of draft tokens."""

    def guesses(self, wanted: Wanted) -> Sequence[list[int]]:
        """Return draft tokens for each choice: as many as requested, or fewer."""
        ...

    def forget(self, completion: Completion) -> None:
        """Drop the state of a choice, if there is any."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Drafts:
    """The draft tokens of a pass, as many as it has room for.

    Parameters
    ----------
    drafter : Drafter or None
        Source of draft tokens; None for no speculative decoding.
    most : int
        Most draft tokens of a choice at once; 0 without a drafter.
    """

    def __init__(self, drafter: Drafter | None = None, most: int = 0) -> None:
        self.most = most
        self._drafter = drafter

    def guess(self, planned: Sequence[tuple[Completion, int]], columns: int) -> None:
        """Set draft tokens for each choice that generates tokens.

        Parameters
        ----------
        planned : sequence of (Completion, int)
            Choices of a pass, with their numbers of tokens.
        columns : int
            Most tokens of the pass, including those planned.
        """
        if self._drafter is None:
            return
        open_to = [each for each, _ in planned if each.guessable]
        spare = columns - sum(count for _, count in planned)
        share = min(self.most, spare // max(len(open_to), 1))
        wanted = [(each, min(share, each.guessable)) for each in open_to] if share > 0 else []
        if not wanted:
            return
        try:
            found = self._drafter.guesses(wanted)
        except BackendError as error:
            # Its model was closed, or its device was lost.
            _LOG.warning("drafts: %s; answers go on without guesses", error)
            self.close()
            self._drafter = None
            return
        for (each, count), tokens in zip(wanted, found, strict=True):
            each.guessed = tokens[:count]

    def forget(self, completion: Completion) -> None:
        """Drop the state of a choice that has ended or whose tokens were shifted."""
        if self._drafter is not None:
            # `guess` reports an error.
            with suppress(BackendError):
                self._drafter.forget(completion)

    def close(self) -> None:
        """Release the drafter."""
        if self._drafter is not None:
            # Its model may have been closed.
            with suppress(BackendError):
                self._drafter.close()


def drop_drafts(planned: Sequence[tuple[Completion, int]]) -> bool:
    """Remove the draft tokens of a pass that has no room; return False if there are none."""
    found = [each for each, _ in planned if each.guessed]
    for each in found:
        each.guessed = []
    return bool(found)


def cut_back(cache: Cache, completions: Sequence[Completion]) -> None:
    """Remove rejected draft tokens from the cache."""
    for each in completions:
        if each.ahead or cache.length(each.sequence) <= each.sent:
            continue
        try:
            each.sent = cache.remove(each.sequence, each.sent)
        except CacheFull:
            # Copying a shared block needs room: compute the sequence again instead.
            each.sent = cache.remove(each.sequence)


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
        self._next_places: dict[tuple[int, ...], int] = {}

    def following(self, count: int) -> list[int]:
        """Return the tokens after the last earlier occurrence of the text's suffix."""
        self._take_in()
        for size in SIZES:
            found = self._next_places.get(tuple(self.tokens[-size:]))
            if found is not None and len(self.tokens) >= size:
                return list(self.tokens[found : found + count])
        return []

    def _take_in(self) -> None:
        """Index the position after each n-gram, except at the end of the text."""
        for end in range(max(self._seen, 1), len(self.tokens)):
            for size in SIZES:
                if end >= size:
                    self._next_places[tuple(self.tokens[end - size : end])] = end
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
