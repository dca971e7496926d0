"""The time that steps take."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field

# Steps are short if two of them take at most one frame of a 60 Hz screen: a user cannot see that
# their tokens arrive together.
BRIEF_SECONDS = 1 / 120
# Steps between two readings of the clock.
TIMED = 8
# Steps from which the time of a step is taken.
LATEST = 9


@dataclass(slots=True)
class Pace:
    """The time of the last steps, and a choice of the number of steps of one submit from it.

    Parameters
    ----------
    longest : int
        Most steps of one submit.
    together : int
        Steps of the next submit.
    """

    longest: int
    together: int = 1
    _read: int = 0
    _ended: float = 0.0
    _latest: deque[float] = field(default_factory=lambda: deque[float](maxlen=LATEST))
    # So the first reading finds no brief steps, and submits begin with one step.
    _looked: float = field(default=-math.inf)

    def count(self) -> None:
        """Count a step whose results were read; every few steps, measure their time."""
        now = time.perf_counter()
        self._latest.append(now - self._ended)
        self._ended = now
        if self._read % TIMED == 0:
            brief = now - self._looked < TIMED * BRIEF_SECONDS
            self.together = self.longest if brief else 1
            self._looked = now
        self._read += 1

    def skip(self) -> None:
        """Leave out of the next step's time what happened before now."""
        self._ended = time.perf_counter()

    @property
    def step(self) -> float:
        """Return the seconds of a step: of the latest ones, a quarter took less.

        Other programs only make steps longer, so a median would grow with the machine's load.
        """
        return sorted(self._latest)[len(self._latest) // 4] if self._latest else 0.0
