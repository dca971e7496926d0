"""What the cache holds of earlier and running requests, found by the tokens it was made of.

A sequence stays in the cache when its request ends. A chain of hashes over its blocks finds it
again: each covers a block's tokens and the hash before, so one look-up says that whole prefixes are
alike. The tokens are then compared, since hashes may collide and a stranger's text must not be
taken for one's own. The cache itself shares what is alike: whole blocks are counted once more,
windows and states go on from a checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from wgpu_backend.engine.batching.host_copies import Copy, HostCopies
from wgpu_backend.errors import CacheFull
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.paged import BLOCK
from wgpu_backend.nn.kvcache.saving import Saved

NUMBERS = count(1 << 10)  # no two engines have a sequence of the same, sessions have those below
MOST_KEPT = 256  # sequences, which cost the host something even where they share blocks
MOST_COMPARED = 8  # sequences that have the same prefix, the newest of them


@dataclass(slots=True)
class Entry:
    """A sequence and what it was made of.

    Parameters
    ----------
    tokens : sequence of int
    computed : int
        So many of them are in the cache, or on their way there.
    idle : bool
        Whether no request goes on with it.
    chain : list of int
        Hashes of its whole blocks.
    """

    tokens: Sequence[int]
    computed: int = 0
    idle: bool = False
    chain: list[int] = field(default_factory=list[int])


class PrefixCache:
    """Finds, shares and forgets sequences.

    Parameters
    ----------
    cache : Cache
    enabled : bool
        Where not, nothing is kept or found.
    host_nbytes : int
        Host memory for copies of what the cache has no room for.
    """

    def __init__(self, cache: Cache, *, enabled: bool = True, host_nbytes: int = 0) -> None:
        self._cache = cache
        self._enabled = enabled
        self._copies = HostCopies(cache, host_nbytes if enabled else 0)
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # the one used last comes last
        self._having: dict[int, list[int]] = {}  # sequences by the hashes of their chains

    @property
    def kept(self) -> tuple[int, int]:
        """Sequences that are kept for reuse, and their tokens."""
        idle = [entry.computed for entry in self._entries.values() if entry.idle]
        return len(idle), sum(idle)

    def begin(self, tokens: Sequence[int], *, reuse: bool = True) -> tuple[int, int]:
        """Give a sequence for a request, which begins with as much as there is of its prompt.

        At least one token of the prompt is left to compute.

        Parameters
        ----------
        tokens : sequence of int
            The prompt; what the request adds behind it is taken in by `note`.
        reuse : bool
            Whether to look for it; else nothing of it is there.

        Returns
        -------
        sequence, length : int
            Its number, and how many positions it has.
        """
        if not reuse:
            sequence = next(NUMBERS)
            return sequence, self._begun(sequence, tokens, 0)
        found, common = self._longest(tokens, len(tokens) - 1)
        copy, more = self._copies.longest(tokens, len(tokens) - 1)
        if copy is not None and more >= common + BLOCK:
            sequence = next(NUMBERS)
            if length := self._restored(copy, sequence, more):
                return sequence, self._begun(sequence, tokens, length)
            found, common = self._longest(tokens, len(tokens) - 1)
        if found is not None:
            self._entries.move_to_end(found)
            entry = self._entries[found]
            if entry.idle and entry.computed - common < BLOCK:
                length = self._cut(found, common)
                self._unlist(found)
                return found, self._begun(found, tokens, length)
        sequence = next(NUMBERS)
        length = 0 if found is None else self._shared(found, sequence, common)
        return sequence, self._begun(sequence, tokens, length)

    def _cut(self, sequence: int, length: int) -> int:
        """Cut a sequence back: to whole blocks where others share the last and none is free."""
        try:
            return self._cache.remove(sequence, length)
        except CacheFull:
            return self._cache.remove(sequence, length - length % BLOCK)

    def _restored(self, copy: Copy, sequence: int, length: int) -> int:
        """Bring a copy back, for which others that nobody uses make room; 0 where there is none."""
        while True:
            try:
                return self._copies.restore(copy, sequence, length)
            except CacheFull:
                if not self.evict():
                    return 0

    def _begun(self, sequence: int, tokens: Sequence[int], length: int) -> int:
        self._entries[sequence] = Entry(tokens)
        self.note(sequence, length)
        return length

    def _shared(self, source: int, target: int, common: int) -> int:
        """Share whole blocks, which costs nothing, or up to a checkpoint where that is farther."""
        whole = common - common % BLOCK
        length = whole if self._cache.can_resume(source, whole) else common
        try:
            return self._cache.copy_prefix(source, target, length)
        except CacheFull:
            return self._cache.remove(target)

    def _longest(self, tokens: Sequence[int], most: int) -> tuple[int | None, int]:
        """Sequence that has most of a prompt, and how much."""
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
        """Tokens that a sequence begins with as is wanted, of those it has computed."""
        entry = self._entries[sequence]
        size = min(entry.computed, len(wanted))
        different = np.flatnonzero(np.asarray(entry.tokens[:size]) != wanted[:size])
        return int(different[0]) if len(different) else size

    def note(self, sequence: int, computed: int) -> None:
        """Take in how many of a sequence's tokens are in the cache, or on their way there."""
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
        """Keep a sequence for others, now that its request has ended.

        Parameters
        ----------
        computed : int
            So many of its tokens are right; what is behind them is forgotten.
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
        """Forget a sequence altogether."""
        self.hide(sequence)
        self._cache.remove(sequence)

    def hide(self, sequence: int) -> None:
        """Share a sequence with nobody from now on: its positions are not those of its tokens."""
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
        """What there is of a text: the tokens of a sequence that has most of it; None for nothing.

        It is what the cache has, on the host, whatever may have come behind those tokens.
        """
        found, common = self._longest(tokens, len(tokens))
        if found is None:
            return [], None
        entry = self._entries[found]
        if entry.computed == common:
            return [*entry.tokens[:common]], self._cache.save(found)
        copy = next(NUMBERS)
        length = self._shared(found, copy, common)
        saved = self._cache.save(copy) if length else None
        self._cache.remove(copy)
        return [*tokens[:length]], saved

    def take(self, tokens: Sequence[int], saved: Saved) -> None:
        """Keep what was saved of tokens; idle sequences make room for it.

        Raises
        ------
        CacheFull
            There is no room beside those that run.
        """
        sequence = next(NUMBERS)
        while True:
            try:
                self._cache.restore(sequence, saved)
                break
            except CacheFull:
                if not self.evict():
                    raise
        self._begun(sequence, [*tokens], len(tokens))
        self.end(sequence, len(tokens))

    def drop(self, tokens: Sequence[int]) -> int:
        """Forget the idle sequence that has most of a text; how many of its tokens that were."""
        found, common = self._longest(tokens, len(tokens))
        if found is None or not self._entries[found].idle:
            return 0
        self.forget(found)
        return common

    def evict(self) -> bool:
        """Forget the sequence kept for reuse that was used longest ago; False for none.

        The host may keep a copy.
        """
        for sequence, entry in self._entries.items():
            if entry.idle:
                self._copies.keep(sequence, entry.tokens[: entry.computed])
                self.forget(sequence)
                return True
        return False

    def clear(self) -> None:
        """Forget all that is kept for reuse, and find nothing of what runs."""
        for sequence in [s for s, entry in self._entries.items() if entry.idle]:
            self.forget(sequence)
        for sequence in list(self._entries):
            self.hide(sequence)
        self._copies.clear()


def _chain(tokens: Sequence[int], end: int, before: Sequence[int] = ()) -> Iterator[int]:
    """Hashes of whole blocks up to `end`, behind those that are known."""
    link = before[-1] if before else 0
    for start in range(len(before) * BLOCK, end - BLOCK + 1, BLOCK):
        link = hash((link, *tokens[start : start + BLOCK]))
        yield link
