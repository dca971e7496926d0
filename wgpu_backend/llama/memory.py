"""The sequences in a context's cache, and operations on them: llama.h's ``llama_memory_…``."""

from __future__ import annotations

from wgpu_backend.errors import ContextError
from wgpu_backend.nn.kvcache.cache import Cache

# As a sequence: all of them. As an end of positions: one past the last.
ALL = -1


class Memory:
    """The sequences of a cache, by llama.h's rules but without gaps between positions.

    Removing positions from the middle of a sequence takes two calls, as in llama.cpp's examples:
    ``seq_rm(s, p0, p1)`` and ``seq_add(s, p1, -1, p0 - p1)``. Between the two calls the sequence
    cannot be continued.

    Parameters
    ----------
    n_seq_max : int
        Number of sequences.
    """

    def __init__(self, cache: Cache, n_seq_max: int) -> None:
        self.n_seq_max = n_seq_max
        self._cache = cache
        # First position and end that seq_rm() removed from a sequence and seq_add() has not closed.
        # The cache still has them: it moves the later positions in one step.
        self._gaps: dict[int, tuple[int, int]] = {}

    def require_known(self, sequence: int) -> int:
        """Return the number of a sequence, if the context has it.

        Raises
        ------
        ContextError
            The number is negative or too large.
        """
        if not 0 <= sequence < self.n_seq_max:
            raise ContextError(f"sequence {sequence}: the context has 0 to {self.n_seq_max - 1}")
        return sequence

    def require_whole(self, sequence: int) -> None:
        """Raise if positions were removed and the gap is still open.

        Raises
        ------
        ContextError
            The sequence has a gap.
        """
        if gap := self._gaps.get(self.require_known(sequence)):
            begin, end = gap
            raise ContextError(
                f"sequence {sequence}: positions {begin} to {end} were removed; close the gap "
                f"with seq_add({sequence}, {end}, -1, {begin - end})"
            )

    def length(self, sequence: int) -> int:
        """Return the positions of a sequence without a gap."""
        self.require_whole(sequence)
        return self._cache.length(sequence)

    def clear(self) -> None:
        """Forget all sequences."""
        for sequence in range(self.n_seq_max):
            self._forget(sequence)

    def seq_rm(self, sequence: int, p0: int = 0, p1: int = ALL) -> bool:
        """Forget positions from `p0` up to but not including `p1`.

        Parameters
        ----------
        sequence : int
            -1 for all.
        p0, p1 : int
            First position and end; negative for the beginning and the end of the sequence.

        Returns
        -------
        bool
            False if that is not possible; nothing has changed then. A recurrent state, or a window
            that has forgotten positions, lets a sequence continue only from some positions.

        Raises
        ------
        CacheFull
            A block that other sequences share would have to change, and no block is free; nothing
            has changed.
        """
        if sequence == ALL:
            # A list: all() of a generator would stop at the first sequence that fails.
            removed = [self.seq_rm(each, p0, p1) for each in range(self.n_seq_max)]
            return all(removed)
        length = self._cache.length(self.require_known(sequence))
        begin = max(p0, 0)
        end = length if p1 < 0 else min(p1, length)
        if begin >= end:
            return True
        if end == length:
            return self._cut(sequence, begin)
        return self._open_gap(sequence, begin, end)

    def _cut(self, sequence: int, begin: int) -> bool:
        gap = self._gaps.get(sequence)
        if gap and begin <= gap[1]:
            # All after the gap is removed: so is the gap.
            begin = min(begin, gap[0])
        if not self._cache.can_resume(sequence, begin):
            return False
        self._cache.remove(sequence, begin)
        if gap and begin <= gap[0]:
            del self._gaps[sequence]
        return True

    def _open_gap(self, sequence: int, begin: int, end: int) -> bool:
        if gap := self._gaps.get(sequence):
            # Two gaps that touch are one. With a second gap elsewhere this raises.
            if begin > gap[1] or end < gap[0]:
                self.require_whole(sequence)
            begin, end = min(begin, gap[0]), max(end, gap[1])
        if not self._cache.can_shift(sequence, begin, end):
            return False
        self._gaps[sequence] = begin, end
        return True

    def seq_add(self, sequence: int, p0: int, p1: int, delta: int) -> None:
        """Close a gap: move the positions after it.

        Parameters
        ----------
        p0, p1 : int
            All positions after the gap: its end, and that of the sequence (or -1).
        delta : int
            Minus the size of the gap.

        Raises
        ------
        ContextError
            The move would leave or make a gap.
        CacheFull
            A block that other sequences share would have to change, and no block is free; nothing
            has changed.
        """
        length = self._cache.length(self.require_known(sequence))
        start, stop = max(p0, 0), length if p1 < 0 else min(p1, length)
        if not delta or start >= stop:
            return
        gap = self._gaps.get(sequence)
        if (
            gap is None
            or stop < length
            or not gap[0] <= start <= gap[1]
            or delta != gap[0] - gap[1]
        ):
            raise ContextError(
                f"seq_add: sequence {sequence}, positions {start} to {stop} by {delta}: all "
                f"positions after the gap {gap} must move by its size"
            )
        self._cache.shift(sequence, *gap)
        del self._gaps[sequence]

    def seq_cp(self, source: int, target: int, p0: int = 0, p1: int = ALL) -> None:
        """Share the first positions of a sequence with an empty one.

        Raises
        ------
        ContextError
            `p0` is not the beginning, the target is not empty, or the source cannot be continued
            from `p1`.
        CacheFull
            There is no room for the part that cannot be shared; nothing has changed.
        """
        self.require_whole(source)
        length = self._cache.length(source)
        end = length if p1 < 0 else min(p1, length)
        if source == target or not end:
            return
        if p0 > 0 or self._cache.length(self.require_known(target)):
            raise ContextError(
                f"seq_cp: from {source} to {target}, positions {p0} to {end}: needs the first "
                f"ones, and an empty target, not {self._cache.length(target)} positions; see seq_rm"
            )
        if not self._cache.can_resume(source, end):
            raise ContextError(
                f"seq_cp: sequence {source} cannot be continued from {end} of {length}: it has "
                "recurrent states, or a window has forgotten positions"
            )
        self._cache.copy_prefix(source, target, end)

    def seq_keep(self, sequence: int) -> None:
        """Forget all sequences but one."""
        self.require_known(sequence)
        for each in range(self.n_seq_max):
            if each != sequence:
                self._forget(each)

    def _forget(self, sequence: int) -> None:
        self._cache.remove(sequence)
        self._gaps.pop(sequence, None)

    def seq_pos_min(self, sequence: int) -> int:
        """Return the first position of a sequence: 0, or -1 if it is empty."""
        return 0 if self._cache.length(self.require_known(sequence)) else -1

    def seq_pos_max(self, sequence: int) -> int:
        """Return the last position of a sequence; -1 if it is empty."""
        return self._cache.length(self.require_known(sequence)) - 1

    def can_shift(self) -> bool:
        """Return whether positions can be removed from the middle of this model's sequences."""
        # One past the last sequence is always empty: the answer then depends on the layers alone.
        return self._cache.can_shift(self.n_seq_max, 0, 0)

    def forget_gap(self, sequence: int) -> None:
        """Forget the gap of a sequence that was replaced."""
        self._gaps.pop(sequence, None)
