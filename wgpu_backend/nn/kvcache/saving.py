"""The cached data of one sequence, as host arrays that outlive the cache."""

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
# Rows that one graph reads or writes.
ROWS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class SavedPart:
    """The data that one part of a cache has of a sequence.

    Parameters
    ----------
    length : int
        Positions.
    runs : sequence of (int, int)
        Positions that are stored: the first, and one past the last. Ascending, each within one
        block.
    rows : sequence of (positions, cols), f32
        Rows of all runs, for each tensor of the part. Block types are dequantised, which is
        reversible.
    """

    length: int
    runs: Sequence[Run]
    rows: Sequence[Rows]

    @property
    def count(self) -> int:
        """Return the number of rows of each tensor."""
        return sum(end - begin for begin, end in self.runs)

    def require_rows(self, tensors: Sequence[Tensor]) -> None:
        """Raise if the saved rows do not fit the tensors of a cache.

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
        """Raise if a run of positions crosses the end of a block of this size.

        Raises
        ------
        ContextError
            A run leaves its block or the sequence, or two runs are in one block.
        """
        places: list[int] = []
        for begin, end in self.runs:
            place = begin // block
            ends = min((place + 1) * block, self.length)
            known = 0 <= begin < end == ends and (not places or places[-1] < place)
            if not known:
                raise ContextError(
                    f"cache: positions {begin} to {end} of {self.length} were saved as one block, "
                    f"but are not in one block of {block}"
                )
            places.append(place)


Saved = Sequence[SavedPart]
"""The cached data of a sequence, one entry for each part of the cache."""


def require_parts(saved: Saved, count: int) -> None:
    """Raise if the data was saved by another kind of cache.

    Raises
    ------
    ContextError
        The number of parts differs.
    """
    if len(saved) != count:
        raise ContextError(f"cache: {len(saved)} parts were saved, this cache has {count}")


def read_rows(executor: Executor, tensors: Sequence[Tensor], slots: Sequence[int]) -> list[Rows]:
    """Return rows of each of the tensors, f32."""
    parts = [_read(executor, tensors, slots[at : at + ROWS_AT_ONCE]) for at in _starts(slots)]
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
            ids = context.from_ints(slots[at : at + ROWS_AT_ONCE])
            given = [context.from_numpy(array[at : at + ROWS_AT_ONCE]) for array in rows]
            pairs = zip(tensors, given, strict=True)
            context.compute(*(tensor.set_rows(x, ids) for tensor, x in pairs))


def _starts(slots: Sequence[int]) -> range:
    return range(0, len(slots), ROWS_AT_ONCE)
