"""The duration of steps, and the choices that depend on it."""

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
# For each choice: tokens that a trial of a number of groups measures, tokens before them that are
# not measured, and tokens until the next trials.
TRIED, LEFT_OUT, UNTRIED = 8, 3, 512
# How much faster another number of groups has to be: times vary.
FASTER = 1.05


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
        """Start timing the next step now."""
        self._ended = time.perf_counter()

    @property
    def step(self) -> float:
        """Return the lower quartile of the latest steps' durations, in seconds.

        Other programs only make steps longer, so a median would grow with the machine's load.
        """
        return sorted(self._latest)[len(self._latest) // 4] if self._latest else 0.0


@dataclass(slots=True)
class _Rates:
    """Tokens per second with each number of groups, for one number of choices."""

    found: dict[int, float] = field(default_factory=dict[int, float])
    # Tokens since the trials.
    since: int = 0


@dataclass(slots=True)
class Groups:
    """A choice of the number of groups that answers are divided into, each with a step in flight.

    With as many groups as processors all work at once, and one more keeps them from waiting for
    the host. But a step of fewer rows may take as long, and one processor may have nearly all of
    the work; then one group is faster. So all three are tried for each number of choices, and
    again after a while.

    Parameters
    ----------
    most : int
        Processors that share the layers.
    """

    most: int
    _rates: dict[int, _Rates] = field(default_factory=dict[int, _Rates])
    # Of the trial under way: choices, groups, tokens so far, and when the counted ones began.
    _trial: tuple[int, int] = (0, 0)
    _tokens: int = 0
    _begun: float = 0.0

    def choose(self, choices: int) -> int:
        """Return the number of groups for `choices` choices."""
        if self.most == 1 or choices < 2:
            return 1
        rates = self._rates.setdefault(choices, _Rates())
        tried = [min(each, choices) for each in (self.most, self.most + 1, 1)]
        for each in tried:
            if each not in rates.found:
                return each
        # The first one unless another is faster by more than chance.
        best = max(tried, key=rates.found.__getitem__)
        return best if rates.found[best] > FASTER * rates.found[tried[0]] else tried[0]

    def count(self, choices: int, tokens: int, now: float) -> None:
        """Count the tokens of a step of answers that was read.

        Parameters
        ----------
        choices : int
            Choices that have slots.
        now : float
            Seconds of a clock.
        """
        rates = self._rates.get(choices)
        if rates is None or self.most == 1:
            return
        trial = choices, self.choose(choices)
        if trial != self._trial:
            self._trial, self._tokens = trial, -LEFT_OUT * choices
        before, self._tokens = self._tokens, self._tokens + tokens
        if before <= 0 < self._tokens:
            self._begun, self._tokens = now, 1
        elif self._tokens > TRIED * choices and trial[1] not in rates.found and now > self._begun:
            rates.found[trial[1]], rates.since = self._tokens / (now - self._begun), 0
            self._trial = 0, 0
        rates.since += tokens
        if rates.since > UNTRIED * choices:
            rates.found.clear()

    def skip(self) -> None:
        """Restart the trial, because a step had more than answers in it."""
        self._trial = 0, 0
