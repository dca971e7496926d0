"""The duration of steps, and the choices that depend on it."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field

from wgpu_backend.engine.runner import bucket

# Steps are short if two of them take at most one frame of a 60 Hz screen: a user cannot see that
# their tokens arrive together.
BRIEF_SECONDS = 1 / 120
# Steps between two readings of the clock.
TIMED = 8
# Steps from which the time of a step is taken.
LATEST = 9
# In a round each choice gets a token. Rounds that a trial of a number of groups measures, rounds
# before them that are not measured, and rounds until the next trials.
TRIED, LEFT_OUT, UNTRIED = 8, 3, 512
# A trial ends early after so many times what the best number of groups takes for one.
OVERTIME = 1.25
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
    """Rounds per second with each number of groups, for about as many choices."""

    found: dict[int, float] = field(default_factory=dict[int, float])
    # Rounds since the trials.
    since: float = 0.0


@dataclass(slots=True)
class Groups:
    """A choice of the number of groups that answers are divided into, each with a step in flight.

    With as many groups as processors all work at once, and one more keeps them from waiting for
    the host. But a step of fewer rows may take as long, and one processor may have nearly all of
    the work; then one group is faster. So all three are tried, and again after a while.

    Where many requests run, one ends at nearly every step. Trials for each number of choices would
    hardly end then, so numbers that are padded to the same rows share theirs. Passes over prompts
    interrupt a trial. The next one waits for twice as many rounds without a prompt each time, and
    the best number of groups so far is used meanwhile.

    Parameters
    ----------
    most : int
        Processors that share the layers.
    """

    most: int
    _rates: dict[int, _Rates] = field(default_factory=dict[int, _Rates])
    # Of the trial under way: kind of choices, groups, when it began, rounds so far, and when the
    # counted ones began.
    _trial: tuple[int, int] = (0, 0)
    _started: float = 0.0
    _rounds: float = 0.0
    _begun: float = 0.0
    # Rounds since the last prompt, and those before a trial that may be slower.
    _calm: float = 0.0
    _needed: float = TRIED

    def _kind(self, choices: int) -> int:
        """Return what numbers of choices that share trials have in common."""
        return bucket(choices) if choices > self.most + 1 else choices

    def choose(self, choices: int) -> int:
        """Return the number of groups for `choices` choices."""
        if self.most == 1 or choices < 2:
            return 1
        rates = self._rates.setdefault(self._kind(choices), _Rates())
        tried = [min(each, choices) for each in (self.most, self.most + 1, 1)]
        new = next((each for each in tried if each not in rates.found), None)
        # The first one has to be used anyway.
        if new is not None and (new == tried[0] or self._calm >= self._needed):
            return new
        # The first one unless another is faster by more than chance.
        best = max((each for each in tried if each in rates.found), key=rates.found.__getitem__)
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
        kind = self._kind(choices)
        rates = self._rates.get(kind)
        if rates is None or self.most == 1:
            return
        trial = kind, self.choose(choices)
        if trial != self._trial:
            self._trial, self._started, self._rounds = trial, now, -LEFT_OUT
        self._calm += tokens / choices
        before, self._rounds = self._rounds, self._rounds + tokens / choices
        if before <= 0 < self._rounds:
            self._begun, self._rounds = now, 1 / choices
        if trial[1] not in rates.found:
            self._judge(rates, now)
        rates.since += tokens / choices
        if rates.since > UNTRIED:
            rates.found.clear()

    def _judge(self, rates: _Rates, now: float) -> None:
        """End a trial that is complete, or that is slower than the best one in any case."""
        groups, took = self._trial[1], now - self._started
        best = max(rates.found.values(), default=0.0)
        if self._rounds > TRIED and now > self._begun:
            rates.found[groups] = self._rounds / (now - self._begun)
        elif took * best > OVERTIME * (LEFT_OUT + TRIED):
            rates.found[groups] = (LEFT_OUT + self._rounds) / took
        else:
            return
        self._trial, rates.since, self._needed = (0, 0), 0.0, TRIED

    def skip(self) -> None:
        """Interrupt the trial, because a step had more than answers in it."""
        rates = self._rates.get(self._trial[0])
        if rates is not None and rates.found and self._trial[1] not in rates.found:
            self._needed *= 2
        self._trial, self._calm = (0, 0), 0.0
