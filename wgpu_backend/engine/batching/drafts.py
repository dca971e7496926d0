"""Speculative decoding: tokens are guessed, and one pass computes what follows each of them.

A guess costs a column of the pass. Those that are what the model chooses anyway are tokens made
without a pass of their own; the first that is not ends them, and its positions are cut off the
cache again. What guesses is a `Drafter`; what is chosen hangs on none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.errors import BackendError, CacheFull, OptionError
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.layers import StateShape, iterate_entries

_LOG = logging.getLogger("wgpu_backend.serving")

Wanted = Sequence[tuple[Completion, int]]
"""Choices, and how many tokens to guess behind each, 1 or more."""


class Drafter(Protocol):
    """Guesses tokens."""

    def guesses(self, wanted: Wanted) -> Sequence[list[int]]:
        """Tokens that may follow each choice: as many as are wanted, or fewer.

        Parameters
        ----------
        wanted : sequence of (Completion, int)
        """
        ...

    def forget(self, completion: Completion) -> None:
        """Give up what is kept of a choice; harmless where that is nothing."""
        ...

    def close(self) -> None:
        """Give up all that is kept."""
        ...


class Drafts:
    """Guesses for the choices of a pass, as many as it has room for.

    Parameters
    ----------
    drafter : Drafter or None
        None where nothing is guessed.
    most : int
        Tokens guessed behind each at once; 0 without a drafter.
    """

    def __init__(self, drafter: Drafter | None = None, most: int = 0) -> None:
        self.most = most
        self._drafter = drafter

    def guess(self, planned: Sequence[tuple[Completion, int]], columns: int) -> None:
        """Guess behind each choice that makes tokens.

        Parameters
        ----------
        planned : sequence of (Completion, int)
            Choices of a pass, and how many tokens each has in it.
        columns : int
            That the pass may have, with those planned.
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
        except BackendError as error:  # its model was closed, or its device was lost
            _LOG.warning("drafts: %s; answers go on without guesses", error)
            self.close()
            self._drafter = None
            return
        for (each, count), tokens in zip(wanted, found, strict=True):
            each.guessed = tokens[:count]

    def forget(self, completion: Completion) -> None:
        """Take in that a choice has ended, or other tokens stand before what it has."""
        if self._drafter is not None:
            with suppress(BackendError):  # told where it is asked for guesses
                self._drafter.forget(completion)

    def close(self) -> None:
        """Give up what is kept."""
        if self._drafter is not None:
            with suppress(BackendError):  # its model was closed
                self._drafter.close()


def dropped(planned: Sequence[tuple[Completion, int]]) -> bool:
    """Give up the guesses of a pass that has no room; False where there are none."""
    found = [each for each, _ in planned if each.guessed]
    for each in found:
        each.guessed = []
    return bool(found)


def cut_back(cache: Cache, completions: Sequence[Completion]) -> None:
    """Have the cache forget tokens that were guessed wrong."""
    for each in completions:
        if each.ahead or cache.length(each.sequence) <= each.sent:
            continue
        try:
            each.sent = cache.remove(each.sequence, each.sent)
        except CacheFull:  # others share what would change: it is read again
            each.sent = cache.remove(each.sequence)


def require_cuttable(what: str, model: LanguageModel) -> None:
    """Refuse a model whose cache cannot take single tokens back.

    Raises
    ------
    OptionError
        It has states, which are kept at the ends of passes, or reads with an encoder.
    """
    name = model.backend.file.path
    if any(isinstance(kept, StateShape) for _, kept in iterate_entries(model.model.cache_layers())):
        raise OptionError(
            f"{what}: {name} has layers with states, which cannot take back a token that was "
            "guessed wrong; leave draft out, or use a model of attention alone"
        )
    if model.model.prompt_encoder() is not None:
        raise OptionError(f"{what}: {name} reads with an encoder; leave draft out")
