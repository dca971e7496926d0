"""The candidate tokens of a choice, the most likely first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens and their logits.

    Parameters
    ----------
    ids : (n,)
        int64.
    logits : (n,), float32
        Descending; of equal ones the lower id comes first.
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int) -> Candidates:
        """Return the `count` most likely candidates."""
        return Candidates(self.ids[:count], self.logits[:count])


def largest(logits: NDArray[np.float32], count: int) -> Candidates:
    """Sort the `count` largest logits; 0, or more than there are, sorts all.

    Parameters
    ----------
    logits : (n,), float32
        No NaN.

    Returns
    -------
    Candidates
    """
    total = len(logits)
    if count == 1:
        # Greedy sampling: one pass instead of a partition.
        ids = np.array([np.argmax(logits)])
    elif 0 < count < total:
        ids = _largest_ids(logits, count)
    else:
        ids = np.arange(total)
    # A stable sort keeps ids of equal logits in the ascending order they come in.
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    return Candidates(ids, logits[ids])


def _largest_ids(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return ids of the largest logits, ascending; of those equal to the smallest, the first."""
    smallest = np.partition(logits, len(logits) - count)[len(logits) - count]
    above = np.flatnonzero(logits > smallest)
    # Ties go to the lowest ids, as on devices; `np.partition` alone leaves them in any order.
    equal = np.flatnonzero(logits == smallest)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))
