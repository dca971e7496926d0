"""The states of recurrent layers: one row for each point at which a sequence can resume."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import ClassVar

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import CacheFull, ContextError
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.nn.kvcache.cache import (
    Arrays,
    Counts,
    GraphInputs,
    InputSpecs,
    KeyValues,
    LayerState,
    ints,
)
from wgpu_backend.nn.kvcache.layers import StateShape
from wgpu_backend.nn.kvcache.saving import SavedPart, read_rows, write_rows

# The row of zeros, the state of an empty sequence.
BEGINNING = 0
RUNS = "state.runs"


class RecurrentCache:
    """A part of a `LayeredCache`: states of recurrent layers.

    A pass reads one row for each sequence and writes another one. The row it read is thus a
    checkpoint without a copy, and several sequences may resume from the same row.

    Parameters
    ----------
    rows : int
        Number of rows, without the row of zeros.

    Raises
    ------
    OutOfMemory
        The states do not fit; nothing stays allocated.
    """

    unit: ClassVar[str] = "rows of states"

    def __init__(self, executor: Executor, layers: Mapping[int, StateShape], rows: int) -> None:
        self._executor = executor
        # Row 0 is never given out: all empty sequences read it.
        self._free = list(range(rows, BEGINNING, -1))
        self._references = [0] * (rows + 1)
        # Rows of each sequence, by position.
        self._rows: dict[int, dict[int, int]] = {}
        self.tensors: list[Tensor] = []
        self._states: dict[tuple[int, str], Tensor] = {}
        try:
            for layer, state in layers.items():
                for name, shape in state.shapes.items():
                    self._states[layer, name] = self._state(layer, name, (rows + 1, *shape))
        except BaseException:
            self.close()
            raise

    def _state(self, layer: int, name: str, shape: tuple[int, ...]) -> Tensor:
        spec = Spec.dense(shape, F32)
        storage = self._executor.state(spec, f"cache.{layer}.{name}")
        # The same storage as rows, for saving and restoring a row at once.
        self.tensors.append(leaf(Spec.dense((shape[0], prod(shape[1:])), F32), storage))
        return leaf(spec, storage)

    # For graphs.

    def input_specs(self, tokens: int, sequences: int, longest: int) -> InputSpecs:
        """Return the specification of the rows of each sequence, see `LayerState`."""
        return {RUNS: ints(sequences, 4)}

    def reach(self, longest: int, tokens: int) -> int:
        """Return the positions that a graph reads: those of its tokens."""
        return min(longest, tokens)

    def state(self, layer: int, name: str, inputs: GraphInputs) -> LayerState:
        """Return a state of a layer, for all rows."""
        rows = self._states.get((layer, name))
        if rows is None:
            known = ", ".join(n for i, n in self._states if i == layer)
            raise ContextError(f"cache: layer {layer} has no state {name!r}, it has {known or 0}")
        return LayerState(rows, inputs[RUNS])

    def put(self, layer: int, key: Tensor, value: Tensor | None, inputs: GraphInputs) -> KeyValues:
        """Raise: this cache has no keys."""
        return self.key_values(layer, inputs)

    def key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Raise: this cache has no keys."""
        raise ContextError(f"cache: layer {layer} stores no keys, it has states only")

    # For `LayeredCache`.

    def length(self, sequence: int) -> int:
        """Return the positions that the newest state of a sequence covers."""
        return max(self._rows.get(sequence, ()), default=0)

    @property
    def free_positions(self) -> int:
        """Return a bound that is never reached: positions take no room."""
        # The caller takes the least bound of all parts.
        return 1 << 30

    def shortage(self, counts: Counts) -> int:
        """Return the number of rows that are missing for a pass."""
        return max(0, sum(count > 0 for _, count in counts) - len(self._free))

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Take rows for a pass, and write which are read and written."""
        runs, at = arrays[RUNS], 0
        for i, (sequence, count) in enumerate(counts):
            if count:
                end = self.length(sequence)
                rows = self._rows.setdefault(sequence, {})
                source = rows.get(end, BEGINNING)
                rows[end + count] = self._take()
                runs[i] = at, count, source, rows[end + count]
            else:
                # A run of no tokens writes no state.
                runs[i] = at, 0, -1, -1
            at += count
        runs[len(counts) :] = at, 0, -1, -1

    def _take(self) -> int:
        if not self._free:
            raise CacheFull(f"cache: 0 of {len(self._references) - 1} rows of states are free")
        row = self._free.pop()
        self._references[row] = 1
        return row

    def _give_back(self, row: int) -> None:
        self._references[row] -= 1
        if not self._references[row]:
            self._free.append(row)

    def free_list(self) -> Sequence[int]:
        """Return the free rows."""
        return self._free

    def retain(self, sequence: int, checkpoints: Sequence[int], *, short: bool = False) -> None:
        """Free the rows of all positions that are not checkpoints."""
        rows = self._rows.get(sequence, {})
        if len(rows) > len(checkpoints):
            for position in rows.keys() - set(checkpoints):
                self._give_back(rows.pop(position))

    def resume_point(self, sequence: int, position: int) -> int:
        """Return the last position up to `position` that has a state."""
        return max((p for p in self._rows.get(sequence, ()) if p <= position), default=0)

    def require_truncate(self, sequence: int, length: int) -> None:
        """Do nothing: `truncate` always succeeds."""

    def require_share(self, source: int, target: int, length: int) -> None:
        """Do nothing: `share` always succeeds."""

    def truncate(self, sequence: int, length: int) -> None:
        """Forget states after `length`, which is a resume point."""
        rows = self._rows.get(sequence, {})
        for position in [p for p in rows if p > length]:
            self._give_back(rows.pop(position))

    def share(self, source: int, target: int, length: int) -> None:
        """Share the states of `source` up to `length` with `target`."""
        self.drop(target)
        rows = {p: row for p, row in self._rows.get(source, {}).items() if p <= length}
        for row in rows.values():
            self._references[row] += 1
        self._rows[target] = rows

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        self.truncate(sequence, 0)
        self._rows.pop(sequence, None)

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Return False: a state depends on all earlier tokens."""
        return False

    def require_cut_out(self, sequence: int, begin: int, end: int) -> None:
        """Do nothing: `can_shift` is False."""

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Raise: a state cannot be shifted."""
        raise ContextError("cache: states cannot be shifted; process the text again")

    def save_part(self, sequence: int) -> SavedPart:
        """Return the newest state of a sequence, on the host, without checkpoints."""
        length = self.length(sequence)
        runs = [(length - 1, length)] if length else []
        slots = [self._rows[sequence][length]] if length else []
        return SavedPart(length, runs, read_rows(self._executor, self.tensors, slots))

    def require_part(self, saved: SavedPart) -> None:
        """Raise if the data was saved by a cache of another shape."""
        length = saved.length
        if list(saved.runs) != ([(length - 1, length)] if length else []):
            raise ContextError(
                f"cache: a state after {length} positions was saved with runs {saved.runs}, needs "
                "one of the last position"
            )
        saved.require_rows(self.tensors)

    def restore_part(self, sequence: int, saved: SavedPart) -> None:
        """Give an empty sequence the saved data; it stays empty if that fails."""
        if not saved.length:
            return
        row = self._take()
        self._rows[sequence] = {saved.length: row}
        try:
            write_rows(self._executor, self.tensors, [row], saved.rows)
        except BaseException:
            self.drop(sequence)
            raise

    def close(self) -> None:
        """Release the device memory; calling it again is harmless."""
        for tensor in self.tensors:
            self._executor.free(tensor.storage)
        self.tensors.clear()


# The positions at which sequences can resume in a cache that forgets.


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
        """Renumber the checkpoints after positions `begin` to `end` were removed."""
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
            # The end of a sequence always stays, and what the last passes of a busy one may be
            # undone to.
            last = 1 + self.rewind if sequence in busy else 1
            for i in range(len(ends) - last):
                # The most tokens that would have to be read again without this checkpoint.
                gap = ends[i + 1] - (ends[i - 1] if i else 0)
                found = min(found or (gap, sequence, i), (gap, sequence, i))
        if found is None:
            return None
        _, sequence, place = found
        del self._ends[sequence][place]
        return sequence
