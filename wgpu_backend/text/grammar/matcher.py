"""A matcher that follows one answer through a grammar."""

from __future__ import annotations

import warnings
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar.masks import Mask, mask_words

if TYPE_CHECKING:
    from llguidance import LLMatcher

_STUCK = "grammar: no token of the vocabulary continues the answer"


class Matcher:
    """A state in a grammar: the tokens that may come next, and the tokens taken so far.

    Not safe to use from several threads at once.

    Parameters
    ----------
    library : LLMatcher
        A matcher of its own.
    rows : int
        Number of logits of a row.

    Attributes
    ----------
    seconds : float
        Time that the last mask took; 0 before the first.
    """

    def __init__(self, library: LLMatcher, rows: int) -> None:
        self._library = library
        self._rows = rows
        self.seconds = 0.0

    def copy(self) -> Matcher:
        """Return another matcher in the same state."""
        return Matcher(self._library.deep_copy(), self._rows)

    @property
    def is_ended(self) -> bool:
        """Return whether only an end token may follow."""
        return self._library.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """Return whether the tokens so far are a complete text of the grammar."""
        return self._library.is_accepting()

    def __getattr__(self, name: str) -> bool:
        """Return `is_ended` or `is_accepting` by the name it had one release ago."""
        if name not in ("ended", "accepting"):
            raise AttributeError(f"'Matcher' object has no attribute {name!r}")
        warnings.warn(f"Matcher.{name} is is_{name}", DeprecationWarning, stacklevel=2)
        return self.is_ended if name == "ended" else self.is_accepting

    def mask(self) -> Mask:
        """Return the tokens that may come next, including end tokens where the text may end.

        Releases the interpreter lock while it computes.

        Returns
        -------
        (words,), u32
            See `mask_words`; no bit after the rows is set.

        Raises
        ------
        GrammarError
            The grammar is too complex at this place, or no token of the vocabulary fits.
        """
        begin = perf_counter()
        found = np.frombuffer(self._library.compute_bitmask(), "<u4")
        self.seconds = perf_counter() - begin
        self._require_sound()
        # A copy, because an array over bytes is read-only.
        mask = found[: mask_words(self._rows)].astype(np.uint32)
        if left := self._rows % 32:
            mask[-1] &= np.uint32((1 << left) - 1)
        if not mask.any() and not self.is_ended:
            raise GrammarError(_STUCK)
        return mask

    def take(self, token: int) -> None:
        """Advance by one token.

        Raises
        ------
        GrammarError
            The token may not come next.
        """
        if not self._library.consume_token(token):
            self._require_sound(f"token {token} does not fit")

    def forced_tokens(self) -> list[int]:
        """Return tokens that must come next, as the tokenizer splits them; maybe none.

        Does not take them.
        """
        return [] if self.is_ended else self._library.compute_ff_tokens()

    def _require_sound(self, what: str = "") -> None:
        if self._library.is_error():
            message = self._library.get_error().split("\n", 1)[0][:160]
            # The library notices only later that no token fits.
            stuck = message == "NoExtensionBias"
            reason = f"{what or 'too complex at this place of the answer'}: {message}"
            raise GrammarError(_STUCK if stuck else f"grammar: {reason}")
