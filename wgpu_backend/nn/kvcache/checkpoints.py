"""The positions at which sequences can resume in a cache that forgets."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class Checkpoints:
    """The ends of passes that are kept as checkpoints; older ones are thinned out.

    The nearest earlier checkpoint is at most `interval` tokens away, as long as no pass is longer
    and room is not short.

    Parameters
    ----------
    interval : int
        Most tokens between two checkpoints.
    rewind : int
        Number of the last passes that can be undone.
    """

    def __init__(self, interval: int, rewind: int) -> None:
        self.interval = interval
        self.rewind = rewind
        self._ends: dict[int, list[int]] = {}

    def list_ends(self, sequence: int) -> Sequence[int]:
        """Return the positions of a sequence's checkpoints, ascending; the last is its end."""
        return self._ends.get(sequence, ())

    def sequences(self) -> Sequence[int]:
        """Return the sequences that have checkpoints."""
        return list(self._ends)

    def add(self, sequence: int, end: int) -> None:
        """Record the end of a pass; drop an older end if its neighbours are close enough."""
        ends = self._ends.setdefault(sequence, [])
        if ends and ends[-1] == end:
            return
        ends.append(end)
        # The end that is no longer one of the last `rewind` passes.
        old = len(ends) - 2 - self.rewind
        if old >= 0 and ends[old + 1] - (ends[old - 1] if old else 0) <= self.interval:
            del ends[old]

    def cut(self, sequence: int, end: int) -> None:
        """Make `end` the last checkpoint of a sequence; 0 forgets them all."""
        self._ends[sequence] = [*(each for each in self.list_ends(sequence) if each < end), end]
        if not end:
            del self._ends[sequence]

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Move checkpoints after these positions are removed."""
        moved = [
            p if p <= begin else max(begin, p - (end - begin)) for p in self.list_ends(sequence)
        ]
        self._ends[sequence] = sorted(set(moved) - {0})

    def copy(self, source: int, target: int, end: int) -> None:
        """Copy the checkpoints of `source` up to `end` to `target`."""
        self._ends[target] = list(self.list_ends(source))
        self.cut(target, end)

    def sacrifice(self, busy: Collection[int]) -> int | None:
        """Drop the least useful checkpoint: the one whose neighbours are nearest.

        Parameters
        ----------
        busy : collection of int
            Sequences whose last passes may have to be undone.

        Returns
        -------
        int or None
            The sequence of the checkpoint; None if there is none to drop.
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
