"""Decode steps of one sequence, submitted before the tokens they continue from are known.

::

    submit 0 ─ 1 ─ 2 ─ 3         4         5            depth 4: what the host does
                       read 0 ─▶ read 1 ─▶ read 2       between two reads costs nothing

Positions, slots and block tables are known in advance, and the tokens stay on the device, so the
device works while the host processes earlier tokens. The host sees an end some steps late; tokens
after it are dropped, and the caller cuts the cache back.

Short steps, which are dominated by host time, are submitted in pairs to save host time; while
one pair is read the next one runs::

    submit 0+1 ─ 2+3               4+5
                     read 0 ─ 1 ─▶     read 2 ─ 3
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

from wgpu_backend.engine.runner import Head, Runner, TimedResult, Work
from wgpu_backend.engine.step_sampler import MOST_AHEAD, StepSampler
from wgpu_backend.errors import BackendError, CacheFull, OptionError

# Steps of one submit: with two submits in flight, an end is seen at most 3 steps late.
TOGETHER = 2
# Steps are short if two of them take at most one frame of a 60 Hz screen: a user cannot see that
# their tokens arrive together.
BRIEF_SECONDS = 1 / 120
# Steps between two readings of the clock.
TIMED = 8


class PipelinedDecoder:
    """A pipeline that keeps a number of decode steps in flight.

    Parameters
    ----------
    head : Head
        The head that `sampler` builds; its `times` is the number of steps of one submit.
    depth : int
        Steps in flight at most; 1 reads each before the next. With more, two submits of short
        steps may be in flight even if these are more steps.
    room : int
        Most positions of the sequence.

    Raises
    ------
    OptionError
        `depth` is less than 1 or more than 8.
    """

    def __init__(
        self,
        runner: Runner,
        sequence: int,
        sampler: StepSampler,
        head: Head,
        depth: int,
        room: int,
    ) -> None:
        if not 1 <= depth <= MOST_AHEAD:
            raise OptionError(f"depth: {depth} steps in flight, needs 1 to {MOST_AHEAD}")
        self._runner = runner
        self._sequence = sequence
        self._sampler = sampler
        self._head = head
        self._depth = 1 if sampler.on_host else depth
        self._room = room
        self._under_way: deque[TimedResult] = deque()
        self._together = 1
        self._read = 0
        self._looked = -math.inf
        self._failure: BackendError | None = None

    def begin(self, tokens: Sequence[int]) -> None:
        """Submit the rest of a prompt, which gives the first token."""
        runner, sampler = self._runner, self._sampler
        self._under_way.append(runner.prompt(self._sequence, tokens, self._head, sampler.inputs()))
        sampler.advance()

    def token(self, wanted: int) -> int:
        """Return the next token.

        Parameters
        ----------
        wanted : int
            Most tokens that will be read, this one included; negative for no limit.

        Raises
        ------
        BackendError
            The step failed, or could not be submitted.
        """
        if self._read and (self._read - 1) % TIMED == 0:  # the first token is a prompt's
            self._look()
        self._submit(wanted)
        token = self._sampler.token(self._under_way.popleft().wait())
        self._read += 1
        return token

    def forget(self) -> None:
        """Drop the steps that have not been read."""
        self._under_way.clear()

    def _look(self) -> None:
        """Choose the number of steps of one submit from the time of the last steps."""
        now = time.perf_counter()
        brief = now - self._looked < TIMED * BRIEF_SECONDS
        self._together = self._head.times if brief and self._depth > 1 else 1
        self._looked = now

    def _submit(self, wanted: int) -> None:
        """Submit steps until enough are in flight; raise errors only if none is in flight."""
        while count := self._missing(wanted):
            try:
                self._submit_batch(count)
            except BackendError:
                if not self._under_way:
                    raise
                return

    def _missing(self, wanted: int) -> int:
        """Return the number of steps to submit now; never 0 if none is in flight."""
        under_way = len(self._under_way)
        left = self._room - self._runner.cache.length(self._sequence)
        if wanted >= 0:
            left = min(left, wanted - under_way)
        count = min(self._together, left)
        if not under_way:
            return max(count, 1)
        most = self._depth if self._together == 1 else max(self._depth, 2 * self._together)
        return count if count > 0 and under_way + count <= most else 0

    def _submit_batch(self, count: int) -> None:
        """Submit steps together: as many as the cache has room for, at least one."""
        if self._failure is not None:
            raise self._failure
        batch = self._runner.batched_submit(self._head, count)
        for number in range(count):
            work = Work(self._sequence, (self._sampler.newest,), (0,))
            try:
                batch.add([work], self._sampler.inputs())
            except CacheFull:
                if not number:
                    raise
                break
            self._sampler.advance()
        try:
            self._under_way += batch.submit()
        except BackendError as error:
            self._failure = error  # the sampler has gone ahead, nothing can follow
            raise
