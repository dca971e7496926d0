"""The keys and values of pictures that a decoder attends to from their place in a prompt on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ContextError
from wgpu_backend.ml.executor import Executor
from wgpu_backend.nn.kvcache.cache import Arrays, Counts
from wgpu_backend.nn.kvcache.encoded import ENDS, TABLE, EncodedCache
from wgpu_backend.nn.kvcache.layers import EncodedShape
from wgpu_backend.nn.kvcache.paged import BLOCK
from wgpu_backend.nn.kvcache.saving import SavedPart


class _Picture(NamedTuple):
    """A picture's place in its sequence, and the end of its rows in the group."""

    at: int
    end: int


@dataclass(slots=True)
class _Group:
    """The pictures that the newest tokens of a sequence attend to: those without text between.

    Parameters
    ----------
    first : int
        Position of the sequence's first picture, whose rows may be gone.
    """

    first: int
    pictures: list[_Picture] = field(default_factory=list[_Picture])


class PicturesCache(EncodedCache):
    """A part of a `LayeredCache`: keys and values of the pictures of each sequence.

    A token attends to the last picture before it, and to pictures directly before that one (Dubey
    et al. 2024, "The Llama 3 Herd of Models", §7.3, and the published code). So only the last such
    group is kept, and a sequence can resume after it, or before its first picture.

    Parameters
    ----------
    positions : int
        Rows of pictures of all sequences.
    dtype : DType
        See `PagedCache`.
    """

    unit: ClassVar[str] = f"blocks of {BLOCK} for pictures"

    def __init__(
        self, executor: Executor, layers: Mapping[int, EncodedShape], positions: int, dtype: DType
    ) -> None:
        super().__init__(executor, layers, positions, dtype)
        self._groups: dict[int, _Group] = {}
        self._announced: dict[int, _Picture] = {}

    # For the writer of pictures.

    def has(self, sequence: int) -> bool:
        """Return whether tokens of a sequence attend to a picture."""
        return sequence in self._groups

    def announce(self, sequence: int, at: int, rows: int) -> None:
        """Register a picture whose token is at position `at`; the next `fill` takes room for it."""
        self._announced[sequence] = _Picture(at, rows)

    def forget_announced(self) -> None:
        """Forget the pictures that no `fill` has taken room for."""
        self._announced.clear()

    def newest_slots(self, sequence: int) -> NDArray[np.int32]:
        """Return the slots of the newest picture of a sequence."""
        pictures = self._groups[sequence].pictures
        start = pictures[-2].end if len(pictures) > 1 else 0
        blocks = np.array(self._table.get_blocks(sequence), np.int32)
        places = np.arange(start, pictures[-1].end)
        return (blocks[places // BLOCK] * BLOCK + places % BLOCK).astype(np.int32)

    def _joins(self, sequence: int, picture: _Picture) -> bool:
        """Return whether a picture directly follows the last one."""
        group = self._groups.get(sequence)
        last = group.pictures[-1].at if group is not None and group.pictures else None
        return last == picture.at - 1

    # For `LayeredCache`.

    def shortage(self, counts: Counts) -> int:
        """Return the number of blocks that are missing for the announced pictures of a pass."""
        needed = 0
        for sequence, _ in counts:
            picture = self._announced.get(sequence)
            if picture is None:
                continue
            if self._joins(sequence, picture):
                needed += self._table.needs(sequence, picture.end)
            else:
                needed += -(-picture.end // BLOCK) - self._table.count_owned(sequence)
        return max(0, needed - self._table.free)

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Take room for announced pictures, and write the pictures of a pass's sequences."""
        for sequence, _ in counts:
            if (picture := self._announced.pop(sequence, None)) is not None:
                self._begin(sequence, picture)
        ends, at = arrays[ENDS], 0
        ends[...] = -1
        if not self._groups:
            return
        self.fill_table(arrays[TABLE], [sequence for sequence, _ in counts])
        for sequence, count in counts:
            ends[at : at + count] = self._table.length(sequence) - 1
            at += count

    def _begin(self, sequence: int, picture: _Picture) -> None:
        group = self._groups.get(sequence)
        if group is None or not self._joins(sequence, picture):
            self._table.drop(sequence)
            first = picture.at if group is None else group.first
            self._groups[sequence] = group = _Group(first)
        self._table.extend(sequence, picture.end)
        group.pictures.append(_Picture(picture.at, self._table.length(sequence)))

    def resume_point(self, sequence: int, position: int) -> int:
        """Return `position`; if the pictures it sees are forgotten, at most the first one's."""
        position, group = max(position, 0), self._groups.get(sequence)
        if group is None or (group.pictures and position > group.pictures[0].at):
            return position
        return min(position, group.first)

    def _find_pictures(self, sequence: int, length: int) -> list[_Picture]:
        """Return the pictures of a sequence that is cut to `length`."""
        group = self._groups.get(sequence)
        return [] if group is None else [each for each in group.pictures if each.at < length]

    def _set(self, sequence: int, first: int, pictures: list[_Picture]) -> None:
        if pictures:
            self._groups[sequence] = _Group(first, pictures)
        else:
            self._groups.pop(sequence, None)

    def require_truncate(self, sequence: int, length: int) -> None:
        """Raise if `truncate` would."""
        left = self._find_pictures(sequence, length)
        self._table.require_truncate(sequence, left[-1].end if left else 0)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the pictures after a resume point."""
        if sequence not in self._groups:
            return
        left, first = self._find_pictures(sequence, length), self._groups[sequence].first
        self._copy_slots(sequence, self._table.truncate(sequence, left[-1].end if left else 0))
        self._set(sequence, first, left)

    def require_share(self, source: int, target: int, length: int) -> None:
        """Raise if `share` would."""
        left = self._find_pictures(source, length)
        self._table.require_share(source, target, left[-1].end if left else 0)

    def share(self, source: int, target: int, length: int) -> None:
        """Share the pictures of `source` up to a resume point with `target`."""
        left = self._find_pictures(source, length)
        if not left:
            self.drop(target)
            return
        first = self._groups[source].first
        self._groups.pop(target, None)
        self._copy_slots(target, self._table.share(source, target, left[-1].end))
        self._set(target, first, left)

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        super().drop(sequence)
        self._groups.pop(sequence, None)
        self._announced.pop(sequence, None)

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Return whether no picture would move."""
        return sequence not in self._groups

    def save_part(self, sequence: int) -> SavedPart:
        """Return the cached data of a sequence; of pictures also their places, as a last array."""
        part = super().save_part(sequence)
        group = self._groups.get(sequence)
        if group is None:
            return part
        places = np.array([(group.first, 0), *group.pictures], np.float32)
        return SavedPart(part.length, part.runs, [*part.rows, places])

    def require_part(self, saved: SavedPart) -> None:
        """Raise if the data was saved by a cache of another shape."""
        rows, places = self._split(saved)
        super().require_part(SavedPart(saved.length, saved.runs, rows))
        if bool(len(places)) != bool(saved.length) or (
            len(places) and (places.shape[1:] != (2,) or places[-1, 1] != saved.length)
        ):
            raise ContextError(
                f"cache: pictures of {saved.length} rows were saved with positions of shape "
                f"{places.shape}, needs (pictures + 1, 2), with {saved.length} as the last end"
            )

    def _split(self, saved: SavedPart) -> tuple[Sequence[NDArray[np.float32]], NDArray[np.float32]]:
        """Return the saved rows of the tensors, and the places of pictures."""
        count = len(self.tensors)
        if len(saved.rows) == count + 1:
            return saved.rows[:count], saved.rows[count]
        return saved.rows, np.zeros((0, 2), np.float32)

    def restore_part(self, sequence: int, saved: SavedPart) -> None:
        """Give an empty sequence the saved data; it stays empty if that fails."""
        rows, places = self._split(saved)
        super().restore_part(sequence, SavedPart(saved.length, saved.runs, rows))
        pictures = [_Picture(int(at), int(end)) for at, end in places[1:]]
        self._set(sequence, int(places[0, 0]) if len(places) else 0, pictures)
