"""Tokens of rows that keep to a grammar: chosen once the mask is there, on the device.

A mask depends on the token before it, as the pass does that makes the logits. So the host makes it
while the device computes, and the logits wait in a state for a second, short graph::

    device    pass ──────────────────▶ logits in a state ─ mask, choose ─▶ token
    host      mask of each such row ─▶ write ─────────────┘
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from wgpu_backend.dtypes import F32, U32
from wgpu_backend.engine.runner import Runner, TimedResult, bucket
from wgpu_backend.engine.sampling import build
from wgpu_backend.errors import BackendError
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array, Recorded, write_inputs
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.ops.sampling.host import Plan
from wgpu_backend.ops.sampling.masking import mask_logits
from wgpu_backend.text.grammar import mask_words
from wgpu_backend.text.grammar.masks import Mask

MASK = "token_mask"
NOWHERE = -1  # of the state: for rows that keep to no grammar
MOST_THREADS = 4


class Late(NamedTuple):
    """A recorded choice: its context, and its graph."""

    context: Context
    recorded: Recorded

    def close(self) -> None:
        """Release what the graph holds."""
        self.recorded.close()
        self.context.close()


@dataclass(frozen=True, slots=True)
class Masking:
    """A mask that is being made, or the error that came of it."""

    future: Future[Mask]

    def wait(self) -> Mask | BackendError:
        """Mask, once it is there."""
        try:
            return self.future.result()
        except BackendError as error:
            return error


class Constrained:
    """Chooses tokens among those that masks allow; one for each runner.

    Nothing is held before the first grammar comes.

    Parameters
    ----------
    runner : Runner
    slots : int
        Rows that may keep to a grammar at once.
    vocabulary : int
    """

    def __init__(self, runner: Runner, slots: int, vocabulary: int) -> None:
        self._runner = runner
        self._vocabulary = vocabulary
        self._slots = slots
        self._executor = runner.model.backend.executor
        self._logits: Tensor | None = None
        self._graphs: dict[tuple[int, Plan], Late] = {}
        self._threads: ThreadPoolExecutor | None = None

    @property
    def logits(self) -> Tensor:
        """State that passes put logits into, a row each: (slots, vocabulary), f32."""
        if self._logits is None:
            spec = Spec.dense((bucket(self._slots), self._vocabulary), F32)
            self._logits = leaf(spec, self._executor.state(spec, "logits that wait for masks"))
        return self._logits

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Threads that make masks."""
        if self._threads is None:
            count = min(MOST_THREADS, self._slots, os.cpu_count() or 1)
            self._threads = ThreadPoolExecutor(count, "wgpu_backend masks")
        return self._threads

    def choose(
        self, masks: Sequence[Mask | None], inputs: dict[str, Array], plan: Plan
    ) -> TimedResult:
        """Submit the choice of a token for the first rows of the state; does not wait.

        Parameters
        ----------
        masks : sequence of (words,), u32, or None
            None for a row whose token nobody takes.
        inputs : mapping
            Of `engine.sampling.build`, for as many rows rounded up to a power of two.
        plan : Plan

        Returns
        -------
        TimedResult
            Slots with the chosen tokens.
        """
        rows = bucket(len(masks))
        found = np.full((rows, mask_words(self._vocabulary)), 0xFFFF_FFFF, np.uint32)
        for row, mask in zip(found, masks, strict=False):
            if mask is not None:
                row[:] = mask
        recorded = self._recorded(rows, plan)
        write_inputs(recorded.turns[0], {**inputs, MASK: found})
        return TimedResult(recorded.replay(), self._runner.clock)

    def _recorded(self, rows: int, plan: Plan) -> Recorded:
        key = rows, plan
        if key not in self._graphs:
            context = Context(self._executor)
            mask = context.input(MASK, (rows, mask_words(self._vocabulary)), U32)
            kept = cast("Tensor", mask_logits(self.logits[:rows], mask))
            chosen = build(context, kept, plan, self._runner.token_slots)
            self._graphs[key] = Late(context, context.record(chosen))
        return self._graphs[key].recorded

    def close(self) -> None:
        """Release graphs, the state and threads; again is harmless."""
        for made in self._graphs.values():
            made.close()
        self._graphs.clear()
        if self._logits is not None:
            self._executor.free(self._logits.storage)
            self._logits = None
        self.end_threads()

    def end_threads(self) -> None:
        """End the threads alone, where the device's part has gone with the model."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
