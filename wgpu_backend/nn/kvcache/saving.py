"""What a cache has of one sequence, as arrays that outlive it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import ContextError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor

Run = tuple[int, int]
Rows = NDArray[np.float32]
TOGETHER = 512  # rows that are read or written by one graph


@dataclass(frozen=True, slots=True)
class SavedPart:
    """What one part of a cache has of a sequence.

    Parameters
    ----------
    length : int
        Positions.
    runs : sequence of (int, int)
        Positions that are still there: the first, and one past the last. Growing, and none reaches
        over the border of a block.
    rows : sequence of (positions, cols), f32
        Of each tensor of the part, those of all runs. Keys and values in blocks are what they
        stand for, and become the same blocks again.
    """

    length: int
    runs: Sequence[Run]
    rows: Sequence[Rows]

    @property
    def count(self) -> int:
        """Rows of each tensor."""
        return sum(end - begin for begin, end in self.runs)

    def require_rows(self, tensors: Sequence[Tensor]) -> None:
        """Refuse rows that tensors of a cache do not have.

        Raises
        ------
        ContextError
            Their number or shape differs.
        """
        found = [rows.shape for rows in self.rows]
        wanted = [(self.count, tensor.shape[1]) for tensor in tensors]
        if found != wanted:
            raise ContextError(f"cache: rows {found[:3]} were saved, this cache has {wanted[:3]}")

    def require_blocks(self, block: int) -> None:
        """Refuse positions that are in no blocks.

        Raises
        ------
        ContextError
            A run leaves its block or the sequence, or two are of one block.
        """
        places: list[int] = []
        for begin, end in self.runs:
            place = begin // block
            ends = min((place + 1) * block, self.length)
            known = 0 <= begin < end == ends and (not places or places[-1] < place)
            if not known:
                raise ContextError(
                    f"cache: positions {begin} to {end} of {self.length} were saved as of one "
                    f"block of {block}, which they are not"
                )
            places.append(place)


Saved = Sequence[SavedPart]
"""What a cache has of a sequence, a part for each of its own."""


def require_parts(saved: Saved, count: int) -> None:
    """Refuse what another kind of cache saved.

    Raises
    ------
    ContextError
        It has another number of parts.
    """
    if len(saved) != count:
        raise ContextError(f"cache: {len(saved)} parts were saved, this cache has {count}")


def read_rows(executor: Executor, tensors: Sequence[Tensor], slots: Sequence[int]) -> list[Rows]:
    """Rows of each of the tensors, f32."""
    parts = [_read(executor, tensors, slots[at : at + TOGETHER]) for at in _starts(slots)]
    if not parts:
        return [np.zeros((0, tensor.shape[1]), np.float32) for tensor in tensors]
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def _read(executor: Executor, tensors: Sequence[Tensor], slots: Sequence[int]) -> list[Rows]:
    with Context(executor) as context:
        ids = context.from_ints(slots)
        found = [tensor.rows(ids) for tensor in tensors]
        context.compute(*found)
        return [rows.numpy().astype(np.float32) for rows in found]


def write_rows(
    executor: Executor, tensors: Sequence[Tensor], slots: Sequence[int], rows: Sequence[Rows]
) -> None:
    """Write rows of each of the tensors."""
    for at in _starts(slots):
        with Context(executor) as context:
            ids = context.from_ints(slots[at : at + TOGETHER])
            given = [context.from_numpy(array[at : at + TOGETHER]) for array in rows]
            pairs = zip(tensors, given, strict=True)
            context.compute(*(tensor.set_rows(x, ids) for tensor, x in pairs))


def _starts(slots: Sequence[int]) -> range:
    return range(0, len(slots), TOGETHER)
