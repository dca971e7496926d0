"""Ctrl-C: the first requests a clean stop, the second stops immediately."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """A context in which the first Ctrl-C sets `requested`, and another raises KeyboardInterrupt.

    Work that checks `requested` between its steps can stop cleanly.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Work between two checks may hang, so a second Ctrl-C does not wait for it.
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
