"""Marks in a user's text that prevent it from spelling control tokens."""

from __future__ import annotations

from collections.abc import Iterable

from wgpu_backend.text.tokenizer.fragments import Splitter

# A noncharacter, meant for such marks inside a program and never in text between programs.
MARK = "\ufdd0"
"""The mark put into a control token that a user's text spells."""


class Shield:
    """A marker of control tokens that a text spells.

    Parameters
    ----------
    control : iterable of (str, int)
        Texts and ids of control tokens, the longest first.
    """

    def __init__(self, control: Iterable[tuple[str, int]]) -> None:
        self._control = Splitter(control)

    def mark(self, text: str) -> str:
        """Put a mark inside each control token that a text spells."""
        text = self.unmark(text)
        for spelled, _ in self._control.find_present(text):
            # One pass misses overlapping spellings: `aaa` has two of `aa`, and keeps one.
            while spelled in text:
                text = text.replace(spelled, _broken(spelled))
                # A mark cannot break a single character, so the loop would not end.
                if len(spelled) == 1:
                    break
        return text

    def mark_all(self, text: str) -> str:
        """Put a mark after every character."""
        return MARK.join(self.unmark(text)) + MARK

    def is_marked(self, text: str) -> bool:
        """Return whether `mark` was applied here; otherwise the mark is a user's own text."""
        return MARK in text and any(
            _broken(spelled) in text for spelled, _ in self._control.find_present(self.unmark(text))
        )

    def unmark(self, text: str) -> str:
        """Remove the marks from a text."""
        return text.replace(MARK, "")


def _broken(spelled: str) -> str:
    return spelled[:1] + MARK + spelled[1:]
