"""The block table: which cache block holds which positions of a sequence. It needs no device.

Blocks of a fixed number of positions are shared between sequences by reference count: copying a
prefix increments the counts of its whole blocks. A partial last block belongs to one sequence only,
so no write ever reaches a shared block. A sequence may free blocks that nothing reads any more;
their places in its table remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from wgpu_backend.errors import CacheFull

# Entry in the place of a block that was freed.
GONE = -1
Moves = list[tuple[int, int]]


@dataclass(slots=True)
class SequenceBlocks:
    """The blocks of one sequence, and the number of positions in them.

    Parameters
    ----------
    torn : dict of int to int
        Number of missing first positions of a block, by its place: a shift leaves such blocks.
    """

    blocks: list[int] = field(default_factory=list[int])
    length: int = 0
    torn: dict[int, int] = field(default_factory=dict[int, int])


class BlockTable:
    """A table that assigns blocks to sequences.

    Parameters
    ----------
    blocks : int
        Number of blocks.
    block : int
        Positions in each.
    """

    def __init__(self, blocks: int, block: int) -> None:
        self.block = block
        # Blocks are taken from the end of this list, so that the first ones are used first.
        self._free = list(range(blocks - 1, -1, -1))
        self._references = [0] * blocks
        self._held: dict[int, SequenceBlocks] = {}

    @property
    def free(self) -> int:
        """Return the number of free blocks."""
        return len(self._free)

    def free_list(self) -> Sequence[int]:
        """Return the free blocks."""
        return self._free

    def length(self, sequence: int) -> int:
        """Return the positions of a sequence."""
        held = self._held.get(sequence)
        return held.length if held else 0

    def get_blocks(self, sequence: int) -> Sequence[int]:
        """Return the blocks of a sequence, in the order of positions; `GONE` for freed ones."""
        held = self._held.get(sequence)
        return held.blocks if held else ()

    def needs(self, sequence: int, tokens: int) -> int:
        """Return the number of further blocks that `tokens` more positions of a sequence need."""
        held = self._held.get(sequence)
        if held is None:
            return -(-tokens // self.block)
        # A block that was freed while partly full has to be replaced before it takes more.
        lost = tokens > 0 and self._lost_end(held)
        return -(-(held.length + tokens) // self.block) - len(held.blocks) + lost

    def _lost_end(self, held: SequenceBlocks) -> bool:
        """Return whether the block that takes the next position was freed."""
        return held.length % self.block > 0 and held.blocks[-1] == GONE

    def extend(self, sequence: int, tokens: int) -> list[int]:
        """Return slots for the next positions of a sequence.

        Raises
        ------
        CacheFull
            There are not enough free blocks; nothing has changed.
        """
        held = self._held.get(sequence)
        if tokens == 1 and held and held.length % self.block and held.blocks[-1] != GONE:
            # The fast path: most steps of a generation.
            held.length += 1
            return [held.blocks[-1] * self.block + (held.length - 1) % self.block]
        needed = self.needs(sequence, tokens)
        if needed > len(self._free):
            raise CacheFull(
                f"cache: {tokens} more positions need {needed} blocks of {self.block}, "
                f"{len(self._free)} are free"
            )
        held = self._held.setdefault(sequence, SequenceBlocks())
        if tokens and self._lost_end(held):
            held.blocks[-1] = self._take()
            held.torn[len(held.blocks) - 1] = held.length % self.block
            needed -= 1
        held.blocks += [self._take() for _ in range(needed)]
        positions = range(held.length, held.length + tokens)
        held.length += tokens
        return [held.blocks[p // self.block] * self.block + p % self.block for p in positions]

    def share(self, source: int, target: int, length: int) -> Moves:
        """Share the first positions of `source` with `target`, whose old blocks are dropped.

        Returns
        -------
        list of (int, int)
            Slots to copy, from and to: the positions of a partial last block.

        Raises
        ------
        CacheFull
            No block is free for the copy; nothing has changed.
        """
        if source == target:
            return self.truncate(source, length)
        length = min(max(length, 0), self.length(source))
        self.require_share(source, target, length)
        whole, rest = divmod(length, self.block)
        shared = self.get_blocks(source)
        # Nothing can fail from here on, so that the old blocks can go.
        self.drop(target)
        torn = _cut_torn(self._held[source].torn, whole, rest) if length else {}
        held = SequenceBlocks(list(shared[:whole]), length, torn)
        for block in held.blocks:
            self._keep(block)
        self._held[target] = held
        if not rest:
            return []
        if shared[whole] == GONE:
            held.blocks.append(GONE)
            return []
        held.blocks.append(self._take())
        return self._list_copies(shared[whole], held.blocks[whole], rest)

    def require_share(self, source: int, target: int, length: int) -> None:
        """Raise if `share` would.

        Raises
        ------
        CacheFull
            The prefix ends inside a block, and no other one is free for it.
        """
        if source == target:
            return self.require_truncate(source, length)
        whole, rest = divmod(min(max(length, 0), self.length(source)), self.block)
        if rest and self.get_blocks(source)[whole] != GONE:
            self._require_one(self.get_blocks(target))
        return None

    def truncate(self, sequence: int, length: int) -> Moves:
        """Forget the positions from `length` on.

        Returns
        -------
        list of (int, int)
            Slots to copy, from and to: if the last block becomes partial and is shared, the
            sequence gets its own copy.

        Raises
        ------
        CacheFull
            No block is free for the copy; nothing has changed.
        """
        held = self._held.get(sequence)
        if held is None or length >= held.length:
            return []
        self.require_truncate(sequence, length)
        whole, rest = divmod(max(length, 0), self.block)
        kept = whole + (rest > 0)
        for block in held.blocks[kept:]:
            self._give_back(block)
        del held.blocks[kept:]
        held.torn = _cut_torn(held.torn, whole, rest)
        held.length = max(length, 0)
        # The block with the new end will be written, which other sequences must not see.
        if not rest or not self._is_shared(held.blocks[whole]):
            return []
        old = held.blocks[whole]
        held.blocks[whole] = self._take()
        self._give_back(old)
        return self._list_copies(old, held.blocks[whole], rest)

    def require_truncate(self, sequence: int, length: int) -> None:
        """Raise if `truncate` would.

        Raises
        ------
        CacheFull
            The block with the new end is shared, and no block is free.
        """
        held = self._held.get(sequence)
        whole, rest = divmod(max(length, 0), self.block)
        if held and rest and length < held.length and self._is_shared(held.blocks[whole]):
            self._require_one(held.blocks[whole + 1 :])

    def forget(self, sequence: int, wanted: Callable[[int], bool]) -> None:
        """Free the blocks of a sequence at the places for which `wanted` is false."""
        held = self._held.get(sequence)
        if held is None:
            return
        for place, block in enumerate(held.blocks):
            if block != GONE and not wanted(place):
                self._give_back(block)
                held.blocks[place] = GONE
                held.torn.pop(place, None)

    def cut_out(self, sequence: int, begin: int, end: int) -> tuple[Moves, Moves]:
        """Remove positions from the middle, and move the following ones into their places.

        Blocks that only change their place in the table are reused. A slot may be both source and
        target of moves: in the order returned, each slot is read before it is overwritten.

        Parameters
        ----------
        begin, end : int
            First position, and one past the last.

        Returns
        -------
        copied : list of (int, int)
            Slots to copy, from and to, of positions before `begin` that get another block.
        moved : list of (int, int)
            Slots of all following positions, from and to, in ascending order.

        Raises
        ------
        CacheFull
            There are not enough free blocks; nothing has changed.
        """
        self.require_cut_out(sequence, begin, end)
        held = self._held[sequence]
        old, first, by = held.blocks, begin // self.block, end - begin
        for block in old[-(-begin // self.block) : end // self.block]:
            self._give_back(block)
        # These are released last: a block that is taken for a move must not be one that a later
        # move reads.
        going = set(old[first:]) - set(old[-(-begin // self.block) : end // self.block])
        blocks, torn = old[:first], {p: t for p, t in held.torn.items() if p < first}
        copied: Moves = []
        moved: Moves = []
        for home, there in self._places_after(held, begin, end):
            block = home if not there or self._is_owned(home) else self._take()
            blocks.append(block if there else GONE)
            if there and there.start % self.block:
                torn[len(blocks) - 1] = there.start % self.block
            for position in there:
                slot = block * self.block + position % self.block
                if position >= begin:
                    moved.append((self._slot(old, position + by), slot))
                elif block != home:
                    copied.append((self._slot(old, position), slot))
        for block in going - set(blocks):
            self._give_back(block)
        held.blocks, held.torn, held.length = blocks, torn, held.length - by
        return copied, moved

    def _places_after(
        self, held: SequenceBlocks, begin: int, end: int
    ) -> Iterator[tuple[int, range]]:
        """Yield the blocks from that of `begin` on, as they are after positions were removed.

        Yields
        ------
        block : int
            The block now in that place, to be reused if it is not shared; maybe `GONE`.
        range
            New positions of the tokens stored there: the last ones, without a gap.
        """
        by, first = end - begin, begin // self.block
        left = held.length - by
        for start in range(first * self.block, left, self.block):
            stays = start < begin
            place = first if stays else start // self.block + by // self.block
            stop = at = min(start + self.block, left)
            while at > start and self._is_there(held, at - 1 + (by if at > begin else 0)):
                at -= 1
            yield held.blocks[place], range(at, stop)

    def _is_there(self, held: SequenceBlocks, position: int) -> bool:
        place, offset = divmod(position, self.block)
        return held.blocks[place] != GONE and offset >= held.torn.get(place, 0)

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        return blocks[position // self.block] * self.block + position % self.block

    def require_cut_out(self, sequence: int, begin: int, end: int) -> None:
        """Raise if `cut_out` would.

        Raises
        ------
        CacheFull
            There are not enough free blocks to replace shared ones.
        """
        held = self._held.get(sequence, SequenceBlocks())
        wanted = self._places_after(held, begin, end)
        needed = sum(bool(there) and not self._is_owned(home) for home, there in wanted)
        whole = held.blocks[-(-begin // self.block) : end // self.block]
        free = len(self._free) + sum(map(self._is_owned, whole))
        if needed > free:
            raise CacheFull(
                f"cache: a shift needs {needed} blocks of {self.block}, {free} are free"
            )

    def missing(self, sequence: int, begin: int, end: int) -> int | None:
        """Return the index of the last freed block among positions `begin` to `end`, or None."""
        held = self._held.get(sequence, SequenceBlocks())
        for place in reversed(range(begin // self.block, -(-end // self.block))):
            start = place * self.block
            seen = max(begin, start)
            if seen < min(end, start + self.block) and not self._is_there(held, seen):
                return place
        return None

    def present(self, sequence: int) -> list[tuple[int, int]]:
        """Return the positions that are still stored, as (first, end) of each block."""
        held = self._held.get(sequence, SequenceBlocks())
        starts = [place * self.block for place in range(len(held.blocks))]
        return [
            (start + held.torn.get(place, 0), min(start + self.block, held.length))
            for place, start in enumerate(starts)
            if held.blocks[place] != GONE
        ]

    def slots(self, sequence: int, runs: Sequence[tuple[int, int]]) -> list[int]:
        """Return the slots of stored positions."""
        blocks = self.get_blocks(sequence)
        return [self._slot(blocks, p) for begin, end in runs for p in range(begin, end)]

    def adopt(self, sequence: int, length: int, runs: Sequence[tuple[int, int]]) -> None:
        """Allocate blocks to an empty sequence for the runs that `present` returned.

        Raises
        ------
        CacheFull
            There are not enough free blocks; nothing has changed.
        """
        # Each run is a part of one block.
        if len(runs) > len(self._free):
            raise CacheFull(
                f"cache: a saved sequence needs {len(runs)} blocks of {self.block}, "
                f"{len(self._free)} are free"
            )
        held = SequenceBlocks([GONE] * -(-length // self.block), length)
        for begin, _ in runs:
            place, offset = divmod(begin, self.block)
            held.blocks[place] = self._take()
            if offset:
                held.torn[place] = offset
        self._held[sequence] = held

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        self.truncate(sequence, 0)
        self._held.pop(sequence, None)

    def count_owned(self, sequence: int) -> int:
        """Return the number of blocks that dropping a sequence would free."""
        return sum(map(self._is_owned, self.get_blocks(sequence)))

    def _is_owned(self, block: int) -> bool:
        return block != GONE and self._references[block] == 1

    def _is_shared(self, block: int) -> bool:
        return block != GONE and self._references[block] > 1

    def _require_one(self, going: Sequence[int]) -> None:
        """Raise unless a block is free, or becomes free when the given blocks are released."""
        if not self._free and all(b == GONE or self._references[b] > 1 for b in going):
            raise CacheFull(
                f"cache: a prefix that ends inside a block of {self.block} needs a free one, "
                f"0 of {len(self._references)} are free"
            )

    def _list_copies(self, old: int, new: int, count: int) -> Moves:
        return [(old * self.block + i, new * self.block + i) for i in range(count)]

    def _take(self) -> int:
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _keep(self, block: int) -> None:
        if block != GONE:
            self._references[block] += 1

    def _give_back(self, block: int) -> None:
        if block == GONE:
            return
        self._references[block] -= 1
        if not self._references[block]:
            self._free.append(block)


def _cut_torn(torn: dict[int, int], whole: int, rest: int) -> dict[int, int]:
    """Return the partly freed blocks of a sequence cut to `whole` blocks and `rest` positions."""
    kept = {place: gone for place, gone in torn.items() if place < whole}
    return kept | ({whole: min(torn[whole], rest)} if rest and whole in torn else {})
