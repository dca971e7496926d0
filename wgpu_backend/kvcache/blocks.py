"""Which cache block holds which positions of which sequence. Numbers only, no device.

Blocks of a fixed number of positions are shared between sequences by reference count: a prefix is
copied by counting its whole blocks once more. A block that several sequences hold is never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wgpu_backend.errors import CacheFull


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

    def length(self, sequence: int) -> int:
        """Positions a sequence has."""
        held = self._held.get(sequence)
        return held.length if held else 0

    def blocks_of(self, sequence: int) -> Sequence[int]:
        """Blocks of a sequence, in the order of its positions."""
        held = self._held.get(sequence)
        return held.blocks if held else ()

    def extend(self, sequence: int, tokens: int) -> list[int]:
        """Slots for the next positions of a sequence.

        Raises
        ------
        CacheFull
            There are not enough free blocks; nothing has changed.
        """
        held = self._held.setdefault(sequence, Held())
        needed = -(-(held.length + tokens) // self.block) - len(held.blocks)
        if needed > len(self._free):
            raise CacheFull(
                f"cache: {tokens} more positions need {needed} blocks of {self.block}, "
                f"{len(self._free)} are free"
            )
        held.blocks += [self._take() for _ in range(needed)]
        positions = range(held.length, held.length + tokens)
        held.length += tokens
        return [held.blocks[p // self.block] * self.block + p % self.block for p in positions]

    def share(self, source: int, target: int, length: int) -> list[tuple[int, int]]:
        """Give `target` the first positions of `source`; what it held before is dropped.

        Returns
        -------
        list of (int, int)
            Slots to copy, from and to: the positions of a last block that is not whole.

        Raises
        ------
        CacheFull
            No block is free for those.
        """
        length = min(length, self.length(source))
        whole, rest = divmod(length, self.block)
        shared = list(self.blocks_of(source))
        self.drop(target)
        if rest and not self._free:
            raise CacheFull("cache: a prefix that ends inside a block needs a free one, 0 are free")
        held = Held(shared[:whole], length)
        for block in held.blocks:
            self._references[block] += 1
        self._held[target] = held
        if not rest:
            return []
        held.blocks.append(self._take())
        old, new = shared[whole] * self.block, held.blocks[-1] * self.block
        return [(old + i, new + i) for i in range(rest)]

    def shared_tail(self, sequence: int) -> bool:
        """Whether the block that the next position falls into is held by others too."""
        held = self._held.get(sequence)
        if held is None or held.length % self.block == 0:
            return False
        return self._references[held.blocks[held.length // self.block]] > 1

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the positions from `length` on."""
        held = self._held.get(sequence)
        if held is None or length >= held.length:
            return
        keep = -(-length // self.block)
        for block in held.blocks[keep:]:
            self._give_back(block)
        del held.blocks[keep:]
        held.length = length

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        self.truncate(sequence, 0)
        self._held.pop(sequence, None)

    def _take(self) -> int:
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _give_back(self, block: int) -> None:
        self._references[block] -= 1
        if not self._references[block]:
            self._free.append(block)
