"""Copies in host memory of prefixes that were evicted from the device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.paged import BLOCK
from wgpu_backend.nn.kvcache.saving import Saved


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A copy of a sequence's cache.

    Parameters
    ----------
    tokens : (positions,), i64
        Tokens of the sequence.
    """

    tokens: NDArray[np.int64]
    saved: Saved
    nbytes: int

    def common(self, wanted: NDArray[np.int64]) -> int:
        """Return the length of the common prefix with the wanted tokens."""
        size = min(len(self.tokens), len(wanted))
        different = np.flatnonzero(self.tokens[:size] != wanted[:size])
        return int(different[0]) if len(different) else size


class HostCopies:
    """An LRU store of copies of sequences.

    Parameters
    ----------
    most_nbytes : int
        Most bytes of all copies; 0 keeps none.
    """

    def __init__(self, cache: Cache, most_nbytes: int) -> None:
        self._cache = cache
        self._most = most_nbytes
        self._copies: OrderedDict[int, Copy] = OrderedDict()
        self.nbytes = 0

    def keep(self, sequence: int, tokens: Sequence[int]) -> None:
        """Copy a sequence before its eviction, unless a copy contains it or it is too large."""
        own = np.asarray(tokens, np.int64)
        if not self._most or any(c.common(own) == len(own) for c in self._copies.values()):
            return
        saved = self._cache.save(sequence)
        nbytes = own.nbytes + sum(rows.nbytes for part in saved for rows in part.rows)
        if nbytes > self._most:
            return
        self._copies[sequence] = Copy(own, saved, nbytes)
        self.nbytes += nbytes
        while self.nbytes > self._most:
            self.nbytes -= self._copies.popitem(last=False)[1].nbytes

    def longest(self, tokens: Sequence[int], most: int) -> tuple[Copy | None, int]:
        """Return the copy with the longest prefix of a prompt, and the prefix's length.

        None if the prefix is shorter than a block.
        """
        if not self._copies:
            return None, 0
        wanted = np.asarray(tokens[:most], np.int64)
        common, found = max((copy.common(wanted), key) for key, copy in self._copies.items())
        if common < BLOCK:
            return None, 0
        self._copies.move_to_end(found)
        return self._copies[found], common

    def restore(self, copy: Copy, sequence: int, length: int) -> int:
        """Restore the first positions of a copy to a sequence.

        Returns
        -------
        int
            Restored positions, at most `length`: recurrent states can resume only at checkpoints.

        Raises
        ------
        CacheFull
            There is no room for the copy; the sequence is empty.
        """
        self._cache.restore(sequence, copy.saved)
        return self._cache.remove(sequence, length)

    def clear(self) -> None:
        """Drop all copies."""
        self._copies.clear()
        self.nbytes = 0
