"""Prefixes that the cache has no room for, kept in the host's memory."""

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
    """What the cache had of a sequence.

    Parameters
    ----------
    tokens : (positions,), i64
        It was made of these.
    saved : Saved
    nbytes : int
    """

    tokens: NDArray[np.int64]
    saved: Saved
    nbytes: int

    def common(self, wanted: NDArray[np.int64]) -> int:
        """Tokens that it begins with as is wanted."""
        size = min(len(self.tokens), len(wanted))
        different = np.flatnonzero(self.tokens[:size] != wanted[:size])
        return int(different[0]) if len(different) else size


class HostCopies:
    """Copies of sequences, the one used last at the end.

    Parameters
    ----------
    cache : Cache
    most_nbytes : int
        Of all copies; 0 keeps none.
    """

    def __init__(self, cache: Cache, most_nbytes: int) -> None:
        self._cache = cache
        self._most = most_nbytes
        self._copies: OrderedDict[int, Copy] = OrderedDict()
        self.nbytes = 0

    def keep(self, sequence: int, tokens: Sequence[int]) -> None:
        """Copy a sequence that goes; nothing where a copy has as much, or it is too large."""
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
        """Copy that has most of a prompt, and how much; None below a block."""
        if not self._copies:
            return None, 0
        wanted = np.asarray(tokens[:most], np.int64)
        common, found = max((copy.common(wanted), key) for key, copy in self._copies.items())
        if common < BLOCK:
            return None, 0
        self._copies.move_to_end(found)
        return self._copies[found], common

    def restore(self, copy: Copy, sequence: int, length: int) -> int:
        """Give a sequence the first positions of a copy, as far as they can be gone on from.

        Returns
        -------
        int
            Positions that it has, at most `length`.

        Raises
        ------
        CacheFull
            There is no room for the copy; the sequence has nothing.
        """
        self._cache.restore(sequence, copy.saved)
        return self._cache.remove(sequence, length)

    def clear(self) -> None:
        """Forget all copies."""
        self._copies.clear()
        self.nbytes = 0
