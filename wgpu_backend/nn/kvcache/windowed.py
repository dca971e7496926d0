"""A cache for sliding windows and chunks, which frees blocks that no token sees any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from wgpu_backend.dtypes import F16, DType
from wgpu_backend.ml.executor import Executor
from wgpu_backend.nn.kvcache.cache import Arrays, Counts, InputSpecs, ints
from wgpu_backend.nn.kvcache.layers import LayerCache
from wgpu_backend.nn.kvcache.paged import BLOCK, PagedCache


@dataclass(frozen=True, slots=True)
class Sight:
    """The range of positions that tokens of a layer see; see `LayerShape`.

    Parameters
    ----------
    window, chunk : int
        One of them is not 0.
    """

    window: int = 0
    chunk: int = 0

    @property
    def step(self) -> int:
        """Return the number that the first position of a block table is a multiple of."""
        return lcm(self.chunk or 1, BLOCK)

    def first(self, position: int) -> int:
        """Return the first position that a token at `position` sees."""
        if self.chunk:
            return position - position % self.chunk
        return max(0, position - self.window + 1)

    def reach(self, tokens: int) -> int:
        """Return the most positions that a block table has in a pass of so many tokens."""
        back = self.step - 1 + (0 if self.chunk else self.window - 1)
        return -(-(back + tokens) // BLOCK) * BLOCK


class WindowedCache(PagedCache):
    """A part of a `LayeredCache`: keys and values of layers with the same window or chunk.

    Blocks that no token sees any more are freed, except those that a checkpoint needs. Positions in
    the inputs of graphs count from the first one in a sequence's block table.

    Parameters
    ----------
    executor, layers, positions, dtype, prefix
        See `PagedCache`; `positions` is the number stored at the same time.
    """

    def __init__(
        self,
        executor: Executor,
        layers: Sequence[LayerCache],
        positions: int,
        dtype: DType = F16,
        *,
        sight: Sight,
        prefix: str = "",
    ) -> None:
        super().__init__(executor, layers, positions, dtype, prefix=prefix)
        self.sight = sight
        self._tidied: dict[int, int] = {}

    def input_specs(self, tokens: int, sequences: int, longest: int) -> InputSpecs:
        """Return the specifications of a causal cache, and of positions as counted here."""
        own = {self._input_name(name): ints(tokens) for name in ("positions", "ends")}
        return {**super().input_specs(tokens, sequences, longest), **own}

    def reach(self, longest: int, tokens: int) -> int:
        """Return the positions of a sequence that a graph of so many tokens reads."""
        return min(longest, self.sight.reach(tokens))

    def _input_name(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Take slots for a pass, and write the block table and positions of its sequences."""
        firsts = [self._first(sequence) for sequence, _ in counts]
        self._fill_slots(arrays[self._slots_name], counts)
        table = arrays[self._table_name]
        table[...] = 0
        for name in ("positions", "ends"):
            arrays[self._input_name(name)][...] = arrays[name]
        at = 0
        for row, ((sequence, count), first) in enumerate(zip(counts, firsts, strict=True)):
            blocks = self._table.get_blocks(sequence)[first // self.block :]
            # Freed blocks are out of sight, so any block number will do for them.
            table[row, : len(blocks)] = [max(block, 0) for block in blocks]
            for name in ("positions", "ends"):
                arrays[self._input_name(name)][at : at + count] -= first
            at += count

    def _first(self, sequence: int) -> int:
        """Return the first position in the block table of a sequence's next pass."""
        first = self.sight.first(self.length(sequence))
        return first - first % self.sight.step

    def resume_point(self, sequence: int, position: int) -> int:
        """Return the last position up to `position` whose token finds all it would see."""
        position = super().resume_point(sequence, position)
        while True:
            gone = self._table.missing(sequence, self.sight.first(position), position)
            if gone is None:
                return position
            # The first token of a chunk sees nothing earlier, so a chunk's start always resumes.
            chunk = self.sight.chunk
            position = max(gone * self.block, position - position % chunk if chunk else 0)

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        super().drop(sequence)
        self._tidied.pop(sequence, None)

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Return whether all that the next token would see is certain to be cached.

        Blocks kept for checkpoints do not count: other sequences may take their room.
        """
        if self.sight.chunk or not super().can_shift(sequence, begin, end):
            return False
        length = self.length(sequence)
        first = self.sight.first(length - (end - begin))
        return first >= min(begin, self.sight.first(length))

    def retain(self, sequence: int, checkpoints: Sequence[int], *, short: bool = False) -> None:
        """Free the blocks that neither the next token nor a checkpoint's would see.

        Parameters
        ----------
        checkpoints : sequence of int
            Positions that the sequence may be cut to; the last is its end.
        short : bool
            Check even if no block was filled since the last call.
        """
        length = self.length(sequence)
        if not short and self._tidied.get(sequence) == length // self.block:
            return
        self._tidied[sequence] = length // self.block
        wanted = {length // self.block}
        for position in checkpoints:
            first = self.sight.first(position)
            wanted.update(range(first // self.block, -(-position // self.block)))
        self._table.forget(sequence, wanted.__contains__)
