"""Matcher: one answer on its way through a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar.masks import Mask, words_of

if TYPE_CHECKING:
    from llguidance import LLMatcher

_STUCK = "grammar: no token of the vocabulary continues the answer"


class Matcher:
    """Says which tokens may come next, and follows those that came.

    One thread at a time.

    Parameters
    ----------
    library : LLMatcher
        Its own.
    rows : int
        Logits of a row.
    """

    def __init__(self, library: LLMatcher, rows: int) -> None:
        self._library = library
        self._rows = rows

    def copy(self) -> Matcher:
        """Another one, at the same place."""
        return Matcher(self._library.deep_copy(), self._rows)

    @property
    def ended(self) -> bool:
        """Whether nothing may follow but an end token."""
        return self._library.is_stopped()

    @property
    def accepting(self) -> bool:
        """Whether what came is a whole text of the grammar."""
        return self._library.is_accepting()

    def mask(self) -> Mask:
        """Tokens that may come next, end tokens among them where the text may end.

        The interpreter is free for other threads meanwhile.

        Returns
        -------
        (words,), u32
            See `words_of`; no bit beyond the rows is set.

        Raises
        ------
        GrammarError
            The grammar is too complex at this place, or no token of the vocabulary fits.
        """
        found = np.frombuffer(self._library.compute_bitmask(), "<u4")
        self._require_sound()
        mask = found[: words_of(self._rows)].astype(np.uint32)
        if left := self._rows % 32:
            mask[-1] &= np.uint32((1 << left) - 1)
        if not mask.any() and not self.ended:
            raise GrammarError(_STUCK)
        return mask

    def take(self, token: int) -> None:
        """Go on behind a token.

        Raises
        ------
        GrammarError
            It is none of those that may come.
        """
        if not self._library.consume_token(token):
            self._require_sound(f"token {token} does not fit")

    def forced(self) -> list[int]:
        """Tokens that are sure to come, as the tokenizer cuts their text; empty where it is open.

        They have not been taken.
        """
        return [] if self.ended else self._library.compute_ff_tokens()

    def _require_sound(self, what: str = "") -> None:
        if self._library.is_error():
            message = self._library.get_error().split("\n", 1)[0][:160]
            stuck = message == "NoExtensionBias"  # found late
            reason = f"{what or 'too complex at this place of the answer'}: {message}"
            raise GrammarError(_STUCK if stuck else f"grammar: {reason}")
