"""The prefix cache: sequences of earlier and running requests, found by their tokens.

A sequence stays in the KV cache when its request ends, and is found by a chain of hashes over its
blocks. Each hash covers a block's tokens and the hash before it, so one look-up compares a whole
prefix. The tokens are then compared too: hashes may collide, and one user's text must not be used
for another's. The KV cache shares equal prefixes: whole blocks by reference counts, windows and
states from a checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import CacheFull
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


# Sequence numbers, unique over all engines; sessions use lower ones.
NUMBERS = count(1 << 10)
# Idle sequences to keep: even if they share blocks, each costs host memory.
MOST_KEPT = 256
# Newest sequences with the same hash that are compared.
MOST_COMPARED = 8


@dataclass(slots=True)
class Entry:
    """A sequence of the prefix cache.

    Parameters
    ----------
    computed : int
        Number of tokens that are in the cache or in flight.
    idle : bool
        Whether no request uses the sequence.
    chain : list of int
        Hashes of the whole blocks.
    """

    tokens: Sequence[int]
    computed: int = 0
    idle: bool = False
    chain: list[int] = field(default_factory=list[int])


class PrefixCache:
    """An index of sequences that finds, shares and evicts them.

    Parameters
    ----------
    enabled : bool
        If False, nothing is kept or found.
    host_nbytes : int
        Bytes of host memory for copies of evicted sequences.
    """

    def __init__(self, cache: Cache, *, enabled: bool = True, host_nbytes: int = 0) -> None:
        self._cache = cache
        self._enabled = enabled
        self._copies = HostCopies(cache, host_nbytes if enabled else 0)
        # In LRU order, the last used one at the end.
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        # Sequences by the hashes of their chains; several may have the same text.
        self._having: dict[int, list[int]] = {}

    @property
    def kept(self) -> tuple[int, int]:
        """Number of idle sequences, and of their tokens."""
        idle = [entry.computed for entry in self._entries.values() if entry.idle]
        return len(idle), sum(idle)

    def begin(self, tokens: Sequence[int], *, reuse: bool = True) -> tuple[int, int]:
        """Begin a sequence for a request, with the longest cached prefix of its prompt.

        At least one token of the prompt remains to be computed.

        Parameters
        ----------
        tokens : sequence of int
            The prompt; the request's later tokens are added by `note`.
        reuse : bool
            Whether to look for a prefix; else the sequence is empty.

        Returns
        -------
        sequence, length : int
            Number of the sequence, and its cached positions.
        """
        if not reuse:
            sequence = next(NUMBERS)
            return sequence, self._begin_entry(sequence, tokens, 0)
        found, common = self._longest(tokens, len(tokens) - 1)
        copy, more = self._copies.longest(tokens, len(tokens) - 1)
        if copy is not None and more >= common + BLOCK:
            # Restoring costs an upload, so it must save at least a block.
            sequence = next(NUMBERS)
            if length := self._restore(copy, sequence, more):
                return sequence, self._begin_entry(sequence, tokens, length)
            found, common = self._longest(tokens, len(tokens) - 1)
        if found is not None:
            self._entries.move_to_end(found)
            entry = self._entries[found]
            # An idle sequence that has hardly more than the prefix is continued in place, without
            # a copy of its last block.
            if entry.idle and entry.computed - common < BLOCK:
                length = self._cut(found, common)
                self._unlist(found)
                return found, self._begin_entry(found, tokens, length)
        sequence = next(NUMBERS)
        length = 0 if found is None else self._share(found, sequence, common)
        return sequence, self._begin_entry(sequence, tokens, length)

    def _cut(self, sequence: int, length: int) -> int:
        """Cut a sequence back; to whole blocks if its last block is shared and none is free."""
        try:
            return self._cache.remove(sequence, length)
        except CacheFull:
            return self._cache.remove(sequence, length - length % BLOCK)

    def _restore(self, copy: Copy, sequence: int, length: int) -> int:
        """Restore a host copy, evicting idle sequences for it; return 0 if there is no room."""
        while True:
            try:
                return self._copies.restore(copy, sequence, length)
            except CacheFull:
                if not self.evict():
                    return 0

    def _begin_entry(self, sequence: int, tokens: Sequence[int], length: int) -> int:
        self._entries[sequence] = Entry(tokens)
        self.note(sequence, length)
        return length

    def _share(self, source: int, target: int, common: int) -> int:
        """Share whole blocks without a copy, or copy up to a checkpoint if the cache needs one."""
        whole = common - common % BLOCK
        length = whole if self._cache.can_resume(source, whole) else common
        try:
            return self._cache.copy_prefix(source, target, length)
        except CacheFull:
            return self._cache.remove(target)

    def _longest(self, tokens: Sequence[int], most: int) -> tuple[int | None, int]:
        """Return the sequence with the longest prefix of a prompt, and its length."""
        last: int | None = None
        for link in _chain(tokens, most if self._enabled else 0):
            if link not in self._having:
                break
            last = link
        if last is None:
            return None, 0
        wanted = np.asarray(tokens[:most])
        alike = [(self._common(s, wanted), s) for s in self._having[last][-MOST_COMPARED:]]
        common, found = max(alike)
        return (found, common) if common else (None, 0)

    def _common(self, sequence: int, wanted: np.ndarray) -> int:
        """Return the length of a sequence's computed prefix that equals the wanted tokens."""
        entry = self._entries[sequence]
        size = min(entry.computed, len(wanted))
        different = np.flatnonzero(np.asarray(entry.tokens[:size]) != wanted[:size])
        return int(different[0]) if len(different) else size

    def note(self, sequence: int, computed: int) -> None:
        """Set the number of a sequence's tokens that are in the cache or in flight."""
        entry = self._entries.get(sequence)
        if entry is None:
            return
        entry.computed = computed
        if not self._enabled or computed // BLOCK <= len(entry.chain):
            return
        for link in _chain(entry.tokens, computed, entry.chain):
            entry.chain.append(link)
            self._having.setdefault(link, []).append(sequence)

    def end(self, sequence: int, computed: int) -> None:
        """Keep a sequence for other requests after its own has ended.

        Parameters
        ----------
        computed : int
            Number of valid tokens; positions after them are dropped.
        """
        entry = self._entries.get(sequence)
        if entry is None or not self._enabled or computed < BLOCK:
            self.forget(sequence)
            return
        left = self._cut(sequence, computed)
        if left < len(entry.chain) * BLOCK:
            self._unlist(sequence)
        entry.tokens = list(entry.tokens[:left])
        self.note(sequence, left)
        entry.idle = True
        self._entries.move_to_end(sequence)
        while self.kept[0] > MOST_KEPT:
            self.evict()

    def forget(self, sequence: int) -> None:
        """Drop a sequence."""
        self.hide(sequence)
        self._cache.remove(sequence)

    def hide(self, sequence: int) -> None:
        """Remove a sequence from the index, because its cache no longer matches its tokens."""
        self._unlist(sequence)
        self._entries.pop(sequence, None)

    def _unlist(self, sequence: int) -> None:
        entry = self._entries.get(sequence)
        if entry is None:
            return
        for link in entry.chain:
            self._having[link].remove(sequence)
            if not self._having[link]:
                del self._having[link]
        entry.chain.clear()

    def saved(self, tokens: Sequence[int]) -> tuple[list[int], Saved | None]:
        """Copy the longest cached prefix of a text to the host; None if there is none.

        Returns the tokens of the prefix and its cache.
        """
        found, common = self._longest(tokens, len(tokens))
        if found is None:
            return [], None
        entry = self._entries[found]
        if entry.computed == common:
            return [*entry.tokens[:common]], self._cache.save(found)
        copy = next(NUMBERS)
        length = self._share(found, copy, common)
        saved = self._cache.save(copy) if length else None
        self._cache.remove(copy)
        return [*tokens[:length]], saved

    def take(self, tokens: Sequence[int], saved: Saved) -> None:
        """Add a saved prefix, evicting idle sequences for it.

        Raises
        ------
        CacheFull
            The running sequences leave no room.
        """
        sequence = next(NUMBERS)
        while True:
            try:
                self._cache.restore(sequence, saved)
                break
            except CacheFull:
                if not self.evict():
                    raise
        self._begin_entry(sequence, [*tokens], len(tokens))
        self.end(sequence, len(tokens))

    def drop(self, tokens: Sequence[int]) -> int:
        """Drop the idle sequence with the longest prefix of a text; return the prefix's length."""
        found, common = self._longest(tokens, len(tokens))
        if found is None or not self._entries[found].idle:
            return 0
        self.forget(found)
        return common

    def evict(self) -> bool:
        """Evict the least recently used idle sequence; return False if there is none.

        A copy may be kept in host memory.
        """
        for sequence, entry in self._entries.items():
            if entry.idle:
                self._copies.keep(sequence, entry.tokens[: entry.computed])
                self.forget(sequence)
                return True
        return False

    def clear(self) -> None:
        """Drop all idle sequences and copies, and remove running sequences from the index."""
        for sequence in [s for s, entry in self._entries.items() if entry.idle]:
            self.forget(sequence)
        for sequence in list(self._entries):
            self.hide(sequence)
        self._copies.clear()


def _chain(tokens: Sequence[int], end: int, before: Sequence[int] = ()) -> Iterator[int]:
    """Yield the hashes of whole blocks up to `end`, after the known ones."""
    link = before[-1] if before else 0
    for start in range(len(before) * BLOCK, end - BLOCK + 1, BLOCK):
        link = hash((link, *tokens[start : start + BLOCK]))
        yield link
