"""Grammar-constrained sampling on the device, with masks that the host computes.

Both the mask and the logits of a token depend on the token before it. So the host computes the mask
while the device computes the logits. A pass has to be submitted before its mask is known, so it
chooses under a guess, the mask before it. In a long text nearly all masks are equal. The logits
also wait in a state, where a second, short graph chooses again if the guess was wrong::

    device    pass, choose under the guess ─▶ token; logits in a state ┄ mask, choose ┄▶ token
    host      mask of each such row ─ compare ─────────── write, if they differ ┄┘

The next pass is submitted right after the comparison. It reads the token on the device, so the
device does not wait for the host, which reads the token and makes the next mask meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.engine.runner import Runner, TimedResult, bucket
from wgpu_backend.engine.step_sampler import MASK, apply_masks, build
from wgpu_backend.errors import BackendError
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array, Recorded, write_inputs
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.ops.sampling.host import Plan
from wgpu_backend.text.grammar import Matcher, mask_words
from wgpu_backend.text.grammar.masks import Mask

# Row index for rows without a grammar: their logits are not written to the state.
NOWHERE = -1
MOST_THREADS = 4
# Seconds of a mask that is worth a thread.
_QUICK = 5e-4
# Seconds of a mask that takes less time than a submit.
_BRIEF = 1e-4


class Late(NamedTuple):
    """A recorded graph that chooses tokens under masks, with its context."""

    context: Context
    recorded: Recorded

    def close(self) -> None:
        """Release the graph."""
        self.recorded.close()
        self.context.close()


class Masking:
    """The mask of a matcher for the token of the next pass.

    A thread computes it if the matcher's mask before took long, and otherwise `wait`: most take 10
    to 50 µs, less than it takes to wake a thread.

    Parameters
    ----------
    matcher : Matcher
        The state in the grammar; nothing else may use it until `wait` has returned.
    constrained : Constrained
        Owner of the threads.
    """

    def __init__(self, matcher: Matcher, constrained: Constrained) -> None:
        self._matcher = matcher
        self._made: Mask | BackendError | None = None
        slow = matcher.seconds > _QUICK
        self._future = constrained.threads.submit(matcher.mask) if slow else None

    @property
    def is_brief(self) -> bool:
        """Return whether the mask should take less time than a submit, judged by the last mask."""
        return 0 < self._matcher.seconds < _BRIEF

    @property
    def mask(self) -> Mask | None:
        """The mask, if it was made."""
        return None if isinstance(self._made, BackendError) else self._made

    def wait(self) -> Mask | BackendError:
        """Return the mask, or the error if it could not be made."""
        if self._made is None:
            try:
                self._made = self._future.result() if self._future else self._matcher.mask()
            except BackendError as error:
                self._made = error
        return self._made


def mask_input(masks: Sequence[Mask | None], rows: int, vocabulary: int) -> Array:
    """Return masks as the input of `rows` rows, which rules out nothing where there is none."""
    found = np.full((rows, mask_words(vocabulary)), 0xFFFF_FFFF, np.uint32)
    for row, mask in zip(found, masks, strict=False):
        if mask is not None:
            row[:] = mask
    return found


class Constrained:
    """A sampler of the tokens that masks allow; one for each runner.

    Nothing is allocated before the first grammar is used.

    Parameters
    ----------
    slots : int
        Most rows with a grammar at once.
    vocabulary : int
        Number of logits.
    """

    def __init__(self, runner: Runner, slots: int, vocabulary: int) -> None:
        self._runner = runner
        self.vocabulary = vocabulary
        self._slots = slots
        self._executor = runner.model.backend.executor
        self._logits: Tensor | None = None
        self._graphs: dict[tuple[int, Plan], Late] = {}
        self._threads: ThreadPoolExecutor | None = None

    @property
    def logits(self) -> Tensor:
        """State for the logits of passes, a row each: (slots, vocabulary), f32."""
        if self._logits is None:
            spec = Spec.dense((bucket(self._slots), self.vocabulary), F32)
            self._logits = leaf(spec, self._executor.state(spec, "logits that wait for masks"))
        return self._logits

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Thread pool that computes masks that take long."""
        if self._threads is None:
            count = min(MOST_THREADS, self._slots, os.cpu_count() or 1)
            self._threads = ThreadPoolExecutor(count, "wgpu_backend masks")
        return self._threads

    def choose(
        self, masks: Sequence[Mask | None], inputs: dict[str, Array], plan: Plan
    ) -> TimedResult:
        """Submit the choice of tokens for the first rows of the state, without waiting.

        Parameters
        ----------
        masks : sequence of (words,), u32, or None
            Masks by row; None for a row whose token is not used.
        inputs : mapping
            Inputs of `engine.sampling.build`, for the rows rounded up to a power of two.

        Returns
        -------
        TimedResult
            Token slots with the chosen tokens.
        """
        rows = bucket(len(masks))
        given = mask_input(masks, rows, self.vocabulary)
        recorded = self._record(rows, plan)
        write_inputs(recorded.turns[0], {**inputs, MASK: given})
        return TimedResult(recorded.replay(), self._runner.clock)

    def _record(self, rows: int, plan: Plan) -> Recorded:
        key = rows, plan
        if key not in self._graphs:
            context = Context(self._executor)
            kept = apply_masks(context, self.logits[:rows])
            chosen = build(context, kept, plan, self._runner.token_slots)
            self._graphs[key] = Late(context, context.record(chosen))
        return self._graphs[key].recorded

    def close(self) -> None:
        """Release graphs, the state and threads; safe to call again."""
        for made in self._graphs.values():
            made.close()
        self._graphs.clear()
        if self._logits is not None:
            self._executor.free(self._logits.storage)
            self._logits = None
        self.end_threads()

    def end_threads(self) -> None:
        """Stop the threads only, if the model has released the device already."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
