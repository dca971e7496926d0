"""Where sequences can go on from in a cache that forgets: the ends of passes worth keeping."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class Checkpoints:
    """Ends of passes, of which old ones are thinned out.

    From any position back to the nearest checkpoint are at most `interval` tokens, as long as no
    pass is longer than that and room is not short.

    Parameters
    ----------
    interval : int
        Tokens between two checkpoints at most.
    rewind : int
        So many of the last passes can be taken back.
    """

    def __init__(self, interval: int, rewind: int) -> None:
        self.interval = interval
        self.rewind = rewind
        self._ends: dict[int, list[int]] = {}

    def of(self, sequence: int) -> Sequence[int]:
        """Positions of a sequence's checkpoints, growing; the last is its end."""
        return self._ends.get(sequence, ())

    def sequences(self) -> Sequence[int]:
        """Sequences that have any."""
        return list(self._ends)

    def add(self, sequence: int, end: int) -> None:
        """Take in that a pass ended; an older end goes if its neighbours are near enough."""
        ends = self._ends.setdefault(sequence, [])
        if ends and ends[-1] == end:
            return
        ends.append(end)
        old = len(ends) - 2 - self.rewind  # it has just become too old to be kept for itself
        if old >= 0 and ends[old + 1] - (ends[old - 1] if old else 0) <= self.interval:
            del ends[old]

    def cut(self, sequence: int, end: int) -> None:
        """Make `end` the last of a sequence's, 0 to forget them all."""
        self._ends[sequence] = [*(each for each in self.of(sequence) if each < end), end]
        if not end:
            del self._ends[sequence]

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Take in that the positions between are gone, and what followed has moved there."""
        moved = [p if p <= begin else max(begin, p - (end - begin)) for p in self.of(sequence)]
        self._ends[sequence] = sorted(set(moved) - {0})

    def copy(self, source: int, target: int, end: int) -> None:
        """Give `target` those of `source` up to `end`."""
        self._ends[target] = list(self.of(source))
        self.cut(target, end)

    def sacrifice(self, busy: Collection[int]) -> int | None:
        """Give up the checkpoint that is missed least: the one whose neighbours are nearest.

        Parameters
        ----------
        busy : collection of int
            Sequences whose last passes may have to be taken back.

        Returns
        -------
        int or None
            The sequence it was of; None where there are none to give up.
        """
        found: tuple[int, int, int] | None = None
        for sequence, ends in self._ends.items():
            last = 1 + self.rewind if sequence in busy else 1
            for i in range(len(ends) - last):
                gap = ends[i + 1] - (ends[i - 1] if i else 0)
                found = min(found or (gap, sequence, i), (gap, sequence, i))
        if found is None:
            return None
        _, sequence, place = found
        del self._ends[sequence][place]
        return sequence
