"""Operations on what a context has of its sequences: llama.h's ``llama_memory_…``."""

from __future__ import annotations

from wgpu_backend.errors import ContextError
from wgpu_backend.nn.kvcache.cache import Cache

ALL = -1  # of sequences; as an end, behind the last position


class Memory:
    """Sequences of a cache, by llama.h's rules as far as the cache has no gaps.

    Positions of a sequence follow each other without gaps here, so taking some out of the middle is
    two calls, as it is in llama.cpp's own examples: ``seq_rm(s, p0, p1)`` and
    ``seq_add(s, p1, -1, p0 - p1)``. Between the two the sequence cannot go on.

    Parameters
    ----------
    n_seq_max : int
        Sequences there may be.
    """

    def __init__(self, cache: Cache, n_seq_max: int) -> None:
        self.n_seq_max = n_seq_max
        self._cache = cache
        self._gaps: dict[int, tuple[int, int]] = {}

    def known(self, sequence: int) -> int:
        """Sequence, which there may be.

        Raises
        ------
        ContextError
            Its number is too large, or below 0.
        """
        if not 0 <= sequence < self.n_seq_max:
            raise ContextError(f"sequence {sequence}: the context has 0 to {self.n_seq_max - 1}")
        return sequence

    def require_whole(self, sequence: int) -> None:
        """Fail where positions were taken out and nothing has closed the gap.

        Raises
        ------
        ContextError
            They were.
        """
        if gap := self._gaps.get(self.known(sequence)):
            begin, end = gap
            raise ContextError(
                f"sequence {sequence}: positions {begin} to {end} were taken out; have those "
                f"behind follow by seq_add({sequence}, {end}, -1, {begin - end})"
            )

    def length(self, sequence: int) -> int:
        """Positions of a sequence, one without a gap."""
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
            Negative for the beginning, and the end.

        Returns
        -------
        bool
            False where that cannot be and nothing has changed: a state, or a window that has
            forgotten, lets a sequence go on from some positions alone.

        Raises
        ------
        CacheFull
            Others share what would have to change, and no room is free; nothing has changed.
        """
        if sequence == ALL:
            mine = range(self.n_seq_max)
            removed = [self.seq_rm(each, p0, p1) for each in mine]
            return all(removed)
        length = self._cache.length(self.known(sequence))
        begin = max(p0, 0)
        end = length if p1 < 0 else min(p1, length)
        if begin >= end:
            return True
        if end == length:
            return self._cut(sequence, begin)
        return self._take_out(sequence, begin, end)

    def _cut(self, sequence: int, begin: int) -> bool:
        gap = self._gaps.get(sequence)
        if gap and begin <= gap[1]:
            begin = min(begin, gap[0])
        if not self._cache.can_resume(sequence, begin):
            return False
        self._cache.remove(sequence, begin)
        if gap and begin <= gap[0]:
            del self._gaps[sequence]
        return True

    def _take_out(self, sequence: int, begin: int, end: int) -> bool:
        if gap := self._gaps.get(sequence):
            if begin > gap[1] or end < gap[0]:
                self.require_whole(sequence)
            begin, end = min(begin, gap[0]), max(end, gap[1])
        if not self._cache.can_shift(sequence, begin, end):
            return False
        self._gaps[sequence] = begin, end
        return True

    def seq_add(self, sequence: int, p0: int, p1: int, delta: int) -> None:
        """Have positions behind a gap follow what is in front of it.

        Parameters
        ----------
        p0, p1 : int
            All positions behind the gap: its end, and the sequence's (or -1).
        delta : int
            Minus the size of the gap.

        Raises
        ------
        ContextError
            Another move is asked for, which would leave a gap.
        CacheFull
            Others share what would have to change, and no room is free; nothing has changed.
        """
        length = self._cache.length(self.known(sequence))
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
                f"seq_add: sequence {sequence}, positions {start} to {stop} by {delta}: positions "
                f"have no gaps here, so all that follow the gap {gap} move by its size"
            )
        self._cache.shift(sequence, *gap)
        del self._gaps[sequence]

    def seq_cp(self, source: int, target: int, p0: int = 0, p1: int = ALL) -> None:
        """Give a sequence that has nothing the first positions of another one; they are shared.

        Raises
        ------
        ContextError
            `p0` is not the beginning, the target has something, or the source cannot be gone on
            from at `p1`.
        CacheFull
            There is no room for what cannot be shared; nothing has changed.
        """
        self.require_whole(source)
        length = self._cache.length(source)
        end = length if p1 < 0 else min(p1, length)
        if source == target or not end:
            return
        if p0 > 0 or self._cache.length(self.known(target)):
            raise ContextError(
                f"seq_cp: from {source} to {target}, positions {p0} to {end}: needs the first "
                f"ones, and a target that has nothing, not {self._cache.length(target)}; see seq_rm"
            )
        if not self._cache.can_resume(source, end):
            raise ContextError(
                f"seq_cp: sequence {source} cannot be gone on from at {end} of {length}: it has "
                "states, or a window has forgotten"
            )
        self._cache.copy_prefix(source, target, end)

    def seq_keep(self, sequence: int) -> None:
        """Forget all sequences but one."""
        self.known(sequence)
        for each in range(self.n_seq_max):
            if each != sequence:
                self._forget(each)

    def _forget(self, sequence: int) -> None:
        self._cache.remove(sequence)
        self._gaps.pop(sequence, None)

    def seq_pos_min(self, sequence: int) -> int:
        """First position of a sequence: 0, or -1 where it has none."""
        return 0 if self._cache.length(self.known(sequence)) else -1

    def seq_pos_max(self, sequence: int) -> int:
        """Last position of a sequence; -1 where it has none."""
        return self._cache.length(self.known(sequence)) - 1

    def can_shift(self) -> bool:
        """Whether positions can be taken out of the middle of sequences, of this model."""
        return self._cache.can_shift(self.n_seq_max, 0, 0)  # of a sequence that has nothing

    def forget_gap(self, sequence: int) -> None:
        """Take in that a sequence was replaced."""
        self._gaps.pop(sequence, None)
