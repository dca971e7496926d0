"""Word wrapping of streamed text."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len

_WORDS = re.compile(r"\n|[^\S\n]+|\S+")


class Wrapper:
    """A word wrapper that holds a word back until it is complete.

    Parameters
    ----------
    width : callable or None
        Returns the columns of the terminal, which may change, and is called for each piece; None
        for no wrapping.
    """

    def __init__(self, width: Callable[[], int] | None = None) -> None:
        self._width = width
        self._column = 0
        self._space = ""
        self._word = ""

    def push(self, text: str) -> str:
        """Add text, and return the part that can be printed."""
        if self._width is None:
            return text
        words: list[str] = _WORDS.findall(self._word + text)
        self._word = words.pop() if words and not words[-1].isspace() else ""
        return "".join(map(self._placed, words))

    def flush(self) -> str:
        """Return the word that is held back."""
        word, self._word = self._word, ""
        return self._placed(word)

    def _placed(self, word: str) -> str:
        if word == "\n":
            self._column, self._space = 0, ""
            return word
        if word.isspace() or not word:
            self._space += word
            return ""
        before, self._space = self._space, ""
        width = self._width() if self._width else 0
        if self._column + len(before) + cell_len(word) > width and self._column:
            before, self._column = "\n", 0
        else:
            self._column += len(before)
        self._column += cell_len(word)
        return before + word
