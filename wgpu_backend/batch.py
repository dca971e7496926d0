"""What one forward pass is given: tokens, where they stand, where their keys go, what is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.attention.paged import Pages

if TYPE_CHECKING:
    from wgpu_backend.kvcache.paged import PagedCache


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of one sequence for a pass, and which of them results are wanted for."""

    sequence: int
    tokens: Sequence[int]
    outputs: Sequence[int] = ()

    @property
    def whole(self) -> bool:
        """Whether results are wanted for every token, in their order."""
        return list(self.outputs) == list(range(len(self.tokens)))


class BatchShape(NamedTuple):
    """What decides the graph of a batch; batches of one shape share a recorded graph.

    A tuple, since every step makes one and looks its graph up by it.

    Parameters
    ----------
    tokens : int
        Rows of the batch, padding included.
    outputs : int
        Rows that logits are wanted for. As many as tokens are all of them, in their order.
    sequences : int
        Rows of the block table.
    longest : int
        Most positions any sequence has.
    """

    tokens: int
    outputs: int
    sequences: int
    longest: int

    @property
    def whole(self) -> bool:
        """Whether every row is wanted, so that none are gathered."""
        return self.outputs == self.tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass, as tensors of its graph.

    Parameters
    ----------
    context : Context
    shape : BatchShape
    tokens : (tokens,), i32
    positions : (tokens,), i32
        Position of each token in its sequence; -1 for padding.
    slots : (tokens,), i32
        Row of the cache that takes each token's key and value; -1 for padding.
    outputs : (outputs,), i32, or None
        Rows that logits are wanted for; None for all. See `wanted`.
    pages : Pages
        Where the cache holds what the tokens may attend to.
    cache : PagedCache
    """

    context: Context
    shape: BatchShape
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    outputs: Tensor | None
    pages: Pages
    cache: PagedCache

    def wanted(self, x: Tensor) -> Tensor:
        """Rows of (tokens, cols) that results are wanted for: (outputs, cols)."""
        return x if self.outputs is None else x.rows(self.outputs)


class BatchArrays:
    """Values of the inputs of a batch's graph, filled anew for each pass.

    Parameters
    ----------
    shape : BatchShape
    arrays : mapping of str to ndarray
        By the names of the graph's inputs, i32; zeros at first. Others than `NAMES` are left alone.
    """

    NAMES = ("tokens", "positions", "slots", "sequences", "outputs", "table")

    def __init__(self, shape: BatchShape, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._shape = shape
        self._arrays = arrays

    def fill(self, works: Sequence[Work], cache: PagedCache) -> None:
        """Take slots for the tokens of a pass and write down what its graph is given.

        Raises
        ------
        CacheFull
            There are not enough free blocks; some sequences may have been extended.
        """
        if len(works) == self._shape.tokens == 1:
            self._one(works[0], cache)
        else:
            self._several(works, cache)
        cache.fill_table(self._arrays["table"], [work.sequence for work in works])

    def _one(self, work: Work, cache: PagedCache) -> None:
        """A single token, the step of a generation: scalars, and row 0 for all else."""
        arrays = self._arrays
        arrays["positions"][0] = cache.length(work.sequence)
        arrays["slots"][0] = cache.extend(work.sequence, 1)[0]
        arrays["tokens"][0] = work.tokens[0]

    def _several(self, works: Sequence[Work], cache: PagedCache) -> None:
        arrays, outputs = self._arrays, list[int]()
        at = 0
        for row, work in enumerate(works):
            count, first = len(work.tokens), cache.length(work.sequence)
            here = slice(at, at + count)
            arrays["slots"][here] = cache.extend(work.sequence, count)
            arrays["positions"][here] = np.arange(first, first + count)
            arrays["tokens"][here] = work.tokens
            arrays["sequences"][here] = row
            outputs += [at + output for output in work.outputs]
            at += count
        # Rows behind the last token may be left from a fuller batch.
        arrays["slots"][at:] = arrays["positions"][at:] = -1
        arrays["tokens"][at:] = arrays["sequences"][at:] = 0
        if not self._shape.whole:
            arrays["outputs"][: len(outputs)] = outputs
            arrays["outputs"][len(outputs) :] = 0
