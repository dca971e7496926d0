"""Detection of stop texts in streamed text, also across token boundaries."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """A filter that holds text back while it may be the beginning of a stop text.

    Parameters
    ----------
    stops : sequence of str
        Stop texts, none of them empty.

    Attributes
    ----------
    found : str or None
        The first stop text; no text after it is passed on.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """Add text, and return the text that can no longer be part of a stop text."""
        if self.found is not None:
            return ""
        self._held += text
        # The minus sign makes the longest of several stop texts at one place win.
        places = [(self._held.find(stop), -len(stop), stop) for stop in self._stops]
        found = min((place for place in places if place[0] >= 0), default=None)
        if found is not None:
            self.found = found[2]
            ready, self._held = self._held[: found[0]], ""
            return ready
        at = len(self._held) - self._count_begun()
        ready, self._held = self._held[:at], self._held[at:]
        return ready

    def flush(self) -> str:
        """Return the text that is held back, at the end of the stream."""
        rest, self._held = self._held, ""
        return rest

    def _count_begun(self) -> int:
        """Return the length of the longest suffix of the text that begins a stop text."""
        longest = 0
        for stop in self._stops:
            # A whole stop text would have been found before, so its last character is left out.
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest
