"""Which cache block holds which positions of which sequence. Numbers only, no device.

Blocks of a fixed number of positions are shared between sequences by reference count: a prefix is
copied by counting its whole blocks once more. A last block that is not whole belongs to one
sequence alone, so no write ever reaches a block that several hold. A sequence may give blocks back
that nothing reads any more, and keeps their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wgpu_backend.errors import CacheFull

GONE = -1  # in the place of a block that was given back
Moves = list[tuple[int, int]]


@dataclass(slots=True)
class Held:
    """Blocks of one sequence, and how many positions are in them."""

    blocks: list[int] = field(default_factory=list[int])
    length: int = 0


class BlockTable:
    """Hands out blocks to sequences.

    Parameters
    ----------
    blocks : int
        How many there are.
    block : int
        Positions in each.
    """

    def __init__(self, blocks: int, block: int) -> None:
        self.block = block
        self._free = list(range(blocks - 1, -1, -1))
        self._references = [0] * blocks
        self._held: dict[int, Held] = {}

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def unheld(self) -> Sequence[int]:
        """Those blocks."""
        return self._free

    def length(self, sequence: int) -> int:
        """Positions a sequence has."""
        held = self._held.get(sequence)
        return held.length if held else 0

    def blocks_of(self, sequence: int) -> Sequence[int]:
        """Blocks of a sequence, in the order of its positions; `GONE` for those given back."""
        held = self._held.get(sequence)
        return held.blocks if held else ()

    def needs(self, sequence: int, tokens: int) -> int:
        """Blocks that so many more positions of a sequence take."""
        held = self._held.get(sequence)
        if held is None:
            return -(-tokens // self.block)
        lost = tokens > 0 and self._lost_end(held)
        return -(-(held.length + tokens) // self.block) - len(held.blocks) + lost

    def _lost_end(self, held: Held) -> bool:
        """Whether the block that takes the next position was given back."""
        return held.length % self.block > 0 and held.blocks[-1] == GONE

    def extend(self, sequence: int, tokens: int) -> list[int]:
        """Slots for the next positions of a sequence.

        Raises
        ------
        CacheFull
            There are not enough free blocks; nothing has changed.
        """
        held = self._held.get(sequence)
        if tokens == 1 and held and held.length % self.block and held.blocks[-1] != GONE:
            held.length += 1  # most steps of a generation
            return [held.blocks[-1] * self.block + (held.length - 1) % self.block]
        needed = self.needs(sequence, tokens)
        if needed > len(self._free):
            raise CacheFull(
                f"cache: {tokens} more positions need {needed} blocks of {self.block}, "
                f"{len(self._free)} are free"
            )
        held = self._held.setdefault(sequence, Held())
        if tokens and self._lost_end(held):
            held.blocks[-1] = self._take()
            needed -= 1
        held.blocks += [self._take() for _ in range(needed)]
        positions = range(held.length, held.length + tokens)
        held.length += tokens
        return [held.blocks[p // self.block] * self.block + p % self.block for p in positions]

    def share(self, source: int, target: int, length: int) -> Moves:
        """Give `target` the first positions of `source`; what it held before is dropped.

        Returns
        -------
        list of (int, int)
            Slots to copy, from and to: the positions of a last block that is not whole.

        Raises
        ------
        CacheFull
            No block is free for those; nothing has changed.
        """
        if source == target:
            return self.truncate(source, length)
        length = min(max(length, 0), self.length(source))
        self.require_share(source, target, length)
        whole, rest = divmod(length, self.block)
        shared = self.blocks_of(source)
        self.drop(target)
        held = Held(list(shared[:whole]), length)
        for block in held.blocks:
            self._keep(block)
        self._held[target] = held
        if not rest:
            return []
        if shared[whole] == GONE:
            held.blocks.append(GONE)
            return []
        held.blocks.append(self._take())
        return self._moved(shared[whole], held.blocks[whole], rest)

    def require_share(self, source: int, target: int, length: int) -> None:
        """Fail where `share` would.

        Raises
        ------
        CacheFull
            The prefix ends inside a block, and no other one is free for it.
        """
        if source == target:
            return self.require_truncate(source, length)
        whole, rest = divmod(min(max(length, 0), self.length(source)), self.block)
        if rest and self.blocks_of(source)[whole] != GONE:
            self._require_one(self.blocks_of(target))
        return None

    def truncate(self, sequence: int, length: int) -> Moves:
        """Forget the positions from `length` on.

        Returns
        -------
        list of (int, int)
            Slots to copy, from and to: where others hold the last block too and it is not whole
            any more, the sequence gets one of its own.

        Raises
        ------
        CacheFull
            No block is free for that; nothing has changed.
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
        held.length = max(length, 0)
        if not rest or not self._shared(held.blocks[whole]):
            return []
        old = held.blocks[whole]
        held.blocks[whole] = self._take()
        self._give_back(old)
        return self._moved(old, held.blocks[whole], rest)

    def require_truncate(self, sequence: int, length: int) -> None:
        """Fail where `truncate` would.

        Raises
        ------
        CacheFull
            Others share the block that the end lies in, and no other one is free.
        """
        held = self._held.get(sequence)
        whole, rest = divmod(max(length, 0), self.block)
        if held and rest and length < held.length and self._shared(held.blocks[whole]):
            self._require_one(held.blocks[whole + 1 :])

    def forget(self, sequence: int, wanted: Callable[[int], bool]) -> None:
        """Give back the blocks of a sequence that are not wanted, by their place in it."""
        held = self._held.get(sequence)
        if held is None:
            return
        for place, block in enumerate(held.blocks):
            if block != GONE and not wanted(place):
                self._give_back(block)
                held.blocks[place] = GONE

    def cut_out(self, sequence: int, begin: int, end: int) -> Moves:
        """Take positions out of the middle; what follows takes their places, in blocks of its own.

        Parameters
        ----------
        begin, end : int
            First position, and one past the last: multiples of the block.

        Returns
        -------
        list of (int, int)
            Slots to copy, from and to, of blocks that others hold too.

        Raises
        ------
        CacheFull
            There are not enough free blocks for those; nothing has changed.
        """
        self.require_cut_out(sequence, begin, end)
        held = self._held[sequence]
        first, last = begin // self.block, end // self.block
        for block in held.blocks[first:last]:
            self._give_back(block)
        del held.blocks[first:last]
        held.length -= end - begin
        moves: Moves = []
        for place, block in enumerate(held.blocks):
            if place >= first and self._shared(block):
                held.blocks[place] = self._take()
                self._give_back(block)
                moves += self._moved(block, held.blocks[place], self.block)
        return moves

    def require_cut_out(self, sequence: int, begin: int, end: int) -> None:
        """Fail where `cut_out` would.

        Raises
        ------
        CacheFull
            There are not enough free blocks for those that others hold, too.
        """
        blocks, first, last = self.blocks_of(sequence), begin // self.block, end // self.block
        own = sum(self._shared(block) for block in blocks[last:])
        going = sum(b != GONE and self._references[b] == 1 for b in blocks[first:last])
        if own > len(self._free) + going:
            raise CacheFull(
                f"cache: a shift needs {own} blocks of {self.block}, "
                f"{len(self._free) + going} are free"
            )

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        self.truncate(sequence, 0)
        self._held.pop(sequence, None)

    def _shared(self, block: int) -> bool:
        return block != GONE and self._references[block] > 1

    def _require_one(self, going: Sequence[int]) -> None:
        """Fail unless a block is free, or will be once these are given back."""
        if not self._free and all(b == GONE or self._references[b] > 1 for b in going):
            raise CacheFull(
                f"cache: a prefix that ends inside a block of {self.block} needs a free one, "
                f"0 of {len(self._references)} are free"
            )

    def _moved(self, old: int, new: int, count: int) -> Moves:
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
