"""Text that arrives in pieces: how much of it may be shown, and where a JSON value ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def first_of(text: str, markers: Iterable[str], start: int = 0) -> tuple[int, str] | None:
    """Place and text of the marker that comes first; of two in one place, the longer one."""
    found = [(at, marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    return min(found, key=lambda pair: (pair[0], -len(pair[1])), default=None)


def shown(text: str, markers: Sequence[str]) -> int:
    """Characters of `text` before what may be the beginning of a marker."""
    longest = max(map(len, markers), default=0)
    for at in range(max(0, len(text) - longest + 1), len(text)):
        rest = text[at:]
        if any(marker.startswith(rest) for marker in markers):
            return at
    return len(text)


class JsonEnd:
    """Finds the end of a JSON object or list whose text arrives in pieces.

    Only brackets and strings are looked at, so each character costs the same however long the
    value is; whether it is JSON is for who decodes it.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def push(self, text: str) -> int | None:
        """Number of characters of `text` up to the end of the value; None where that is to come."""
        for at, mark in enumerate(text):
            if self._quoted:
                self._within_quotes(mark)
            elif mark == '"':
                self._quoted = True
            elif mark in "{[":
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None

    def _within_quotes(self, mark: str) -> None:
        if self._escaped:
            self._escaped = False
        elif mark == "\\":
            self._escaped = True
        elif mark == '"':
            self._quoted = False
