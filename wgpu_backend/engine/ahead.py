"""Steps of one sequence, submitted before the tokens they go on from are known.

::

    submit 0 ─ 1 ─ 2 ─ 3         4         5            depth 4: what the host does
                       read 0 ─▶ read 1 ─▶ read 2       between two reads costs nothing

Positions, slots and block tables are known in advance, and the tokens wait on the device, so the
device goes on while the host looks at what it made. The host sees an end some steps late; what was
made beyond it is thrown away, and who ran the steps cuts the cache back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from wgpu_backend.engine.runner import Head, Runner, TimedResult, Work
from wgpu_backend.engine.step_sampler import MOST_AHEAD, StepSampler
from wgpu_backend.errors import BackendError, OptionError


class StepsAhead:
    """Keeps up to a number of steps under way.

    Parameters
    ----------
    runner : Runner
    sequence : int
    sampler : StepSampler
    head : Head
        What `sampler` builds.
    depth : int
        Steps under way at most; 1 reads each before the next.
    room : int
        Positions of the sequence at most.

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
            raise OptionError(f"depth: {depth} steps under way, needs 1 to {MOST_AHEAD}")
        self._runner = runner
        self._sequence = sequence
        self._sampler = sampler
        self._head = head
        self._depth = 1 if sampler.on_host else depth
        self._room = room
        self._under_way: deque[TimedResult] = deque()

    def begin(self, tokens: Sequence[int]) -> None:
        """Submit what is left of a prompt; the first token follows it."""
        runner, sampler = self._runner, self._sampler
        self._under_way.append(runner.prompt(self._sequence, tokens, self._head, sampler.inputs()))
        sampler.advance()

    def token(self, wanted: int) -> int:
        """Give the next token.

        Parameters
        ----------
        wanted : int
            Tokens that will be asked for at most, this one included; negative for no end.

        Raises
        ------
        BackendError
            The step failed, or could not be submitted.
        """
        self._submit(self._depth if wanted < 0 else min(self._depth, wanted))
        return self._sampler.token(self._under_way.popleft().wait())

    def forget(self) -> None:
        """Give up the steps that have not been read."""
        self._under_way.clear()

    def _submit(self, count: int) -> None:
        """Submit steps until so many are under way; what fails shows when none is left."""
        while len(self._under_way) < count:
            if self._under_way and self._runner.cache.length(self._sequence) >= self._room:
                return
            try:
                self._step()
            except BackendError:
                if not self._under_way:
                    raise
                return

    def _step(self) -> None:
        work = Work(self._sequence, (self._sampler.newest,), (0,))
        self._under_way.append(self._runner.run([work], self._head, self._sampler.inputs()))
        self._sampler.advance()
