"""Texts that end an answer, wherever tokens cut them."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Passes text on, but what may be the beginning of a stop text is held until that is known.

    Parameters
    ----------
    stops : sequence of str
        None of them empty.

    Attributes
    ----------
    found : str or None
        The stop text that came first; nothing is passed on behind it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """Take text, and give what no stop text can reach any more."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(self._held.find(stop), -len(stop), stop) for stop in self._stops]
        found = min((place for place in places if place[0] >= 0), default=None)
        if found is not None:
            self.found = found[2]
            ready, self._held = self._held[: found[0]], ""
            return ready
        at = len(self._held) - self._begun()
        ready, self._held = self._held[:at], self._held[at:]
        return ready

    def flush(self) -> str:
        """Give what was held: no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _begun(self) -> int:
        """Length of the longest end of the text that begins a stop text."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest
