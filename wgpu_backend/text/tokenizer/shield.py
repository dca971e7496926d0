"""Marks in a user's text that keep it from spelling control tokens."""

from __future__ import annotations

from collections.abc import Iterable

from wgpu_backend.text.tokenizer.fragments import Splitter

# A noncharacter, meant for such marks inside a program and never in text between programs.
MARK = "\ufdd0"
"""What is put into a control token that a user's text spells."""


class Shield:
    """Puts marks into control tokens that a text spells, and takes them away.

    Parameters
    ----------
    control : iterable of (str, int)
        Texts and ids of control tokens, the longest first.
    """

    def __init__(self, control: Iterable[tuple[str, int]]) -> None:
        self._control = Splitter(control)

    def marked(self, text: str) -> str:
        """A text with a mark inside each control token that it spells."""
        text = self.unmarked(text)
        for spelled, _ in self._control.present(text):
            while spelled in text:
                text = text.replace(spelled, _broken(spelled))
                if len(spelled) == 1:
                    break
        return text

    def apart(self, text: str) -> str:
        """A text with a mark between all characters."""
        return MARK.join(self.unmarked(text)) + MARK

    def is_marked(self, text: str) -> bool:
        """Whether `marked` has made something here; otherwise the mark is somebody's text."""
        return MARK in text and any(
            _broken(spelled) in text for spelled, _ in self._control.present(self.unmarked(text))
        )

    def unmarked(self, text: str) -> str:
        """A text without marks."""
        return text.replace(MARK, "")


def _broken(spelled: str) -> str:
    return spelled[:1] + MARK + spelled[1:]
