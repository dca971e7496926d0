"""Grammar-constrained sampling of one sequence on the host."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.ml.executor import Array
from wgpu_backend.ops.sampling.host import Breakers, SamplingOptions
from wgpu_backend.text.grammar import Matcher, apply_mask
from wgpu_backend.text.grammar.masks import Mask


class ConstrainedSampler(StepSampler):
    """A sampler that chooses only tokens that a grammar allows.

    The mask of a step is computed while the device computes its logits, which are read back. An
    `Engine` chooses on the device instead; see `engine.batching.constrained`.

    Parameters
    ----------
    matcher : Matcher
        In the initial state of its grammar.
    ends : frozenset of int
        Tokens that end the text.
    breakers : Breakers or None
        See `Sampler`.
    """

    def __init__(
        self,
        options: SamplingOptions,
        vocabulary: int,
        matcher: Matcher,
        ends: frozenset[int],
        breakers: Breakers | None = None,
    ) -> None:
        super().__init__(options, vocabulary, on_host=True, breakers=breakers)
        self._matcher = matcher
        self._ends = ends
        self._threads: ThreadPoolExecutor | None = None
        self._mask: Future[Mask] | None = None

    @property
    def ended(self) -> bool:
        """Return whether no token may follow those that were read."""
        return self._matcher.is_ended

    def advance(self) -> None:
        """Count the step as submitted, and start computing its mask."""
        super().advance()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "wgpu_backend mask")
        self._mask = self._threads.submit(self._matcher.mask)

    def token(self, arrays: Sequence[Array]) -> int:
        """Return the token of the step, chosen from its masked logits.

        Raises
        ------
        GrammarError
            No token continues the answer.
        BackendError
            The logits are NaN or infinite.
        """
        assert self._mask is not None
        mask = self._mask.result()
        token = super().token([apply_mask(np.asarray(arrays[0], np.float32), mask[None])])
        if token not in self._ends:
            self._matcher.take(token)
        return token
