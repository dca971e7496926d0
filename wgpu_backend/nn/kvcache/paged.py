"""The causal cache: keys and values of layers in blocks that sequences share.

The second half is the cache of sliding windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F16, DType
from wgpu_backend.errors import ContextError, ShapeError
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.nn.kvcache.blocks import BlockTable
from wgpu_backend.nn.kvcache.cache import (
    Arrays,
    Counts,
    GraphInputs,
    InputSpecs,
    KeyValues,
    LayerState,
    ints,
    require_shift,
)
from wgpu_backend.nn.kvcache.layers import (
    LayerCache,
    SharedLayer,
    iterate_entries,
    keep_keys,
    paged_layers,
    require_type,
)
from wgpu_backend.nn.kvcache.saving import Saved, SavedPart, read_rows, require_parts, write_rows
from wgpu_backend.nn.module import old_names
from wgpu_backend.ops.attention.paged import Pages

BLOCK = 32
# Positions whose keys are rotated in one graph.
KEYS_AT_ONCE = 16 * BLOCK


@old_names(
    declared="input_specs", encoded="encoder_key_values", stored="key_values", unheld="free_list"
)
class PagedCache:
    """Keys and values of all past tokens, for layers without windows or states.

    See `Cache` for the methods.

    Parameters
    ----------
    layers : sequence of LayerCache
        One for each layer. Entries other than `LayerShape` and `SharedLayer` are ignored.
    positions : int
        Positions over all sequences; rounded up to whole blocks.
    dtype : DType
        f16, f32, q8_0 or q4_0. Block types are rounded when written, and need heads of whole blocks
        of 32.
    prefix : str
        Prefix of the names of inputs, if there are several caches.

    Attributes
    ----------
    tensors : list of Tensor
        Keys and values of all layers, (positions, cols) each.

    Raises
    ------
    DTypeError
        The type is not one of these.
    ShapeError
        A position does not consist of whole blocks of the type.
    OutOfMemory
        The cache does not fit; nothing stays allocated.
    """

    unit: ClassVar[str] = f"blocks of {BLOCK}"

    def __init__(
        self,
        executor: Executor,
        layers: Sequence[LayerCache],
        positions: int,
        dtype: DType = F16,
        *,
        prefix: str = "",
    ) -> None:
        shapes = paged_layers(layers)
        require_type(dtype, shapes)
        self.block = BLOCK
        self._executor = executor
        # Blocks are the unit of sharing, so that a partial one would be lost.
        blocks = -(-positions // BLOCK)
        self.positions = blocks * BLOCK
        self._prefix = prefix
        self._slots_name, self._table_name = f"{prefix}slots", f"{prefix}table"
        self._table = BlockTable(blocks, BLOCK)
        self.tensors: list[Tensor] = []
        self._shapes = dict(shapes)
        self._own = tuple(shapes)
        self._states: dict[int, dict[str, Tensor]] = {}
        try:
            for i, shape in shapes.items():
                self._states[i] = {
                    what: self._state(cols, dtype, f"cache.{i}.{what}")
                    for what, cols in shape.columns.items()
                }
        except BaseException:
            self.close()
            raise
        # A shared layer uses the tensors of its source.
        for i, kept in iterate_entries(layers):
            if isinstance(kept, SharedLayer) and kept.layer in shapes:
                self._states[i], self._shapes[i] = self._states[kept.layer], shapes[kept.layer]

    def _state(self, cols: int, dtype: DType, label: str) -> Tensor:
        spec = Spec.dense((self.positions, cols), dtype)
        # Recorded at once, so that `close` frees those that were made before a failure.
        self.tensors.append(leaf(spec, self._executor.state(spec, label)))
        return self.tensors[-1]

    # For graphs.

    def input_specs(self, tokens: int, sequences: int, longest: int) -> InputSpecs:
        """Return the specifications of the slots of the pass and its block table."""
        width = -(-self.reach(longest, tokens) // self.block)
        return {self._slots_name: ints(tokens), self._table_name: ints(sequences, width)}

    def reach(self, longest: int, tokens: int) -> int:
        """Return the positions of a sequence that a graph reads: all of them."""
        return min(longest, self.positions)

    def put(self, layer: int, key: Tensor, value: Tensor | None, inputs: GraphInputs) -> KeyValues:
        """Write keys and values of a pass, and return those the layer may attend to."""
        new = {"key": key, **({} if value is None else {"value": value})}
        states = self._get_states(layer)
        if new.keys() != states.keys():
            raise ContextError(
                f"cache: layer {layer} stores {' and '.join(states)}, got {' and '.join(new)}"
            )
        self._require_room(layer, {what: prod(x.shape[1:]) for what, x in new.items()})
        slots = inputs[self._slots_name]
        written = {
            what: states[what].set_rows(x.reshape(x.shape[0], -1), slots) for what, x in new.items()
        }
        return self._make_view(layer, written, inputs)

    def _require_room(self, layer: int, found: Mapping[str, int]) -> None:
        """Raise if keys or values have a width other than the layer's cache entry."""
        kept = self._shapes[layer].columns
        if found != kept:
            has, said = (", ".join(f"{n}={v}" for n, v in d.items()) for d in (found, kept))
            what = f"cache: a token of layer {layer} has {has} values"
            raise ShapeError(f"{what}, `cached` of the layer is CacheLayer({said})")

    def key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Return the keys and values that a layer reads without writing any."""
        return self._make_view(layer, self._get_states(layer), inputs)

    def _pages(self, inputs: GraphInputs) -> Pages:
        return Pages(
            inputs[self._input_name("positions")],
            inputs["sequences"],
            inputs[self._table_name],
            self.block,
            inputs[self._input_name("ends")] if inputs.sees_ahead else None,
        )

    def _get_states(self, layer: int) -> dict[str, Tensor]:
        if layer not in self._states:
            raise ContextError(f"cache: layer {layer} stores no keys; {sorted(self._states)} do")
        return self._states[layer]

    def _make_view(
        self, layer: int, states: Mapping[str, Tensor], inputs: GraphInputs
    ) -> KeyValues:
        shape, keys = self._shapes[layer], states["key"]
        return KeyValues(
            keys,
            # Layers with latents store one tensor, whose first columns are the values.
            states.get("value", keys),
            inputs.pages(self, lambda: self._pages(inputs)),
            self.reach(inputs.longest, inputs.tokens),
            inputs,
            self._input_name("ends"),
            shape.window,
            shape.chunk,
        )

    def _input_name(self, name: str) -> str:
        """Return the name of this cache's own input of that kind."""
        return name

    def state(self, layer: int, name: str, inputs: GraphInputs) -> LayerState:
        """Raise: this cache has no states."""
        raise ContextError(f"cache: layer {layer} has no state {name!r}, it stores keys only")

    def encoder_key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Raise: this cache has no encoder's text."""
        raise ContextError(f"cache: layer {layer} does not attend to an encoder's text")

    # For code that manages sequences.

    def length(self, sequence: int) -> int:
        """Return the positions of a sequence that are cached."""
        return self._table.length(sequence)

    @property
    def free_positions(self) -> int:
        """Return the positions in free blocks."""
        return self._table.free * self.block

    def extend(self, sequence: int, tokens: int) -> list[int]:
        """Return slots for the next positions of a sequence; CacheFull if there are too few."""
        return self._table.extend(sequence, tokens)

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Take slots for the tokens of a pass, and write them and the block table."""
        self._fill_slots(arrays[self._slots_name], counts)
        self.fill_table(arrays[self._table_name], [sequence for sequence, _ in counts])

    def _fill_slots(self, slots: NDArray[np.int32], counts: Counts) -> None:
        # The usual step of a generation, in fewer operations.
        if len(slots) == 1:
            slots[0] = self.extend(counts[0][0], 1)[0]
        else:
            at = 0
            for sequence, count in counts:
                slots[at : at + count] = self.extend(sequence, count)
                at += count
            # Rows of padding are written nowhere.
            slots[at:] = -1

    def fill_table(self, table: NDArray[np.int32], sequences: Sequence[int]) -> None:
        """Write the block table of these sequences, a row each; unused entries become 0."""
        table[...] = 0
        for row, sequence in enumerate(sequences):
            blocks = self._table.get_blocks(sequence)
            table[row, : len(blocks)] = blocks

    def resume_point(self, sequence: int, position: int) -> int:
        """Return `position`, or the end of the sequence if that is earlier."""
        return min(max(position, 0), self.length(sequence))

    def can_resume(self, sequence: int, position: int) -> bool:
        """Return whether generation can resume at `position`."""
        return self.resume_point(sequence, position) == position

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """Share the first positions of one sequence with another.

        Raises
        ------
        CacheFull
            The prefix ends inside a block and no block is free; nothing has changed.
        """
        self.share(source, target, length)
        return self.length(target)

    def remove(self, sequence: int, begin: int = 0) -> int:
        """Forget the positions of a sequence from `begin` on.

        Raises
        ------
        CacheFull
            `begin` is inside a shared block, and no block is free; nothing has changed.
        """
        if begin <= 0:
            self.drop(sequence)
        else:
            self.truncate(sequence, begin)
        return self.length(sequence)

    def save(self, sequence: int) -> Saved:
        """Return the cached data of a sequence, on the host."""
        return [self.save_part(sequence)]

    def require_saved(self, saved: Saved) -> None:
        """Raise if the data was saved by another kind of cache."""
        require_parts(saved, 1)
        self.require_part(saved[0])

    def restore(self, sequence: int, saved: Saved) -> None:
        """Give a sequence the saved data."""
        self.require_saved(saved)
        self._table.drop(sequence)
        self.restore_part(sequence, saved[0])

    # For `LayeredCache`, which keeps several parts in step.

    def save_part(self, sequence: int) -> SavedPart:
        """Return the cached data of a sequence, on the host."""
        runs = self._table.present(sequence)
        rows = read_rows(self._executor, self.tensors, self._table.slots(sequence, runs))
        return SavedPart(self._table.length(sequence), runs, rows)

    def require_part(self, saved: SavedPart) -> None:
        """Raise if the data was saved by a cache of another shape."""
        saved.require_blocks(self.block)
        saved.require_rows(self.tensors)

    def restore_part(self, sequence: int, saved: SavedPart) -> None:
        """Give an empty sequence the saved data; it stays empty if that fails."""
        self._table.adopt(sequence, saved.length, saved.runs)
        try:
            slots = self._table.slots(sequence, saved.runs)
            write_rows(self._executor, self.tensors, slots, saved.rows)
        except BaseException:
            self._table.drop(sequence)
            raise

    def free_list(self) -> Sequence[int]:
        """Return the free blocks."""
        return self._table.free_list()

    def shortage(self, counts: Counts) -> int:
        """Return the number of blocks that are missing for a pass."""
        needed = sum(self._table.needs(sequence, count) for sequence, count in counts)
        return max(0, needed - self._table.free)

    def retain(self, sequence: int, checkpoints: Sequence[int], *, short: bool = False) -> None:
        """Keep all blocks: no position is ever out of sight."""

    def require_truncate(self, sequence: int, length: int) -> None:
        """Raise if `truncate` would, as `BlockTable.require_truncate` does."""
        self._table.require_truncate(sequence, length)

    def require_share(self, source: int, target: int, length: int) -> None:
        """Raise if `share` would, as `BlockTable.require_share` does."""
        self._table.require_share(source, target, length)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the positions after a resume point."""
        self._copy_slots(sequence, self._table.truncate(sequence, length))

    def share(self, source: int, target: int, length: int) -> None:
        """Share the positions of `source` up to a resume point with `target`."""
        self._copy_slots(target, self._table.share(source, target, length))

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        self._table.drop(sequence)

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Return whether the sequence has these positions, and the following ones can move."""
        movable = all(self._shapes[layer].turn is not None for layer in self._own)
        return movable and 0 <= begin <= end <= self.length(sequence)

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Remove positions from a sequence, and rotate the keys of those that follow."""
        require_shift(self, sequence, begin, end)
        if begin == end:
            return
        copied, moved = self._table.cut_out(sequence, begin, end)
        self._copy_slots(sequence, copied)
        try:
            for at in range(0, len(moved), KEYS_AT_ONCE):
                self._move(moved[at : at + KEYS_AT_ONCE], begin - end)
        # The table has changed, and some keys have moved: the sequence is of no use any more.
        except BaseException:
            self._table.drop(sequence)
            raise

    def require_cut_out(self, sequence: int, begin: int, end: int) -> None:
        """Raise if `shift` would, as `BlockTable.require_cut_out` does."""
        self._table.require_cut_out(sequence, begin, end)

    def _move(self, pairs: Sequence[tuple[int, int]], by: int) -> None:
        """Rotate keys of some slots into others, and copy their values; reads precede writes.

        A slot may be its own target, in blocks that only change their place in the table.
        """
        shapes = self._shapes
        elsewhere = [pair for pair in pairs if pair[0] != pair[1]]
        with Context(self._executor) as context:
            old, new = (context.from_ints(slots) for slots in zip(*pairs, strict=True))
            written = [
                keys.set_rows(turn(keys.rows(old), by), new)
                for layer in self._own
                if (turn := shapes[layer].turn) and (elsewhere or turn is not keep_keys)
                for keys in (self._states[layer]["key"],)
            ]
            if elsewhere:
                old, new = (context.from_ints(slots) for slots in zip(*elsewhere, strict=True))
                values = (self._states[layer].get("value") for layer in self._own)
                written += [x.set_rows(x.rows(old), new) for x in values if x is not None]
            if written:
                context.compute(*written)

    def _copy_slots(self, sequence: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy positions for a sequence, which is forgotten if that fails."""
        # Blocks are read as floats and rounded again. That is exact, because the largest value of a
        # block is a whole multiple of its scale.
        if not pairs:
            return
        try:
            with Context(self._executor) as context:
                old = context.from_ints([a for a, _ in pairs])
                new = context.from_ints([b for _, b in pairs])
                context.compute(*(s.set_rows(s.rows(old), new) for s in self.tensors))
        except BaseException:
            self._table.drop(sequence)
            raise

    def close(self) -> None:
        """Release the device memory; calling it again is harmless."""
        for tensor in self.tensors:
            self._executor.free(tensor.storage)
        self.tensors.clear()


# A cache for sliding windows and chunks, which frees blocks that no token sees any more.


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
        """Return the number that a block table's first position is a multiple of."""
        return lcm(self.chunk or 1, BLOCK)

    def first(self, position: int) -> int:
        """Return the first position that a token at `position` sees."""
        if self.chunk:
            return position - position % self.chunk
        return max(0, position - self.window + 1)

    def reach(self, tokens: int) -> int:
        """Return the most positions that a block table has in a pass of `tokens` tokens."""
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
        """Return the positions of a sequence that a graph of `tokens` tokens reads."""
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
        """Return whether every position that the next token would see is certain to be cached.

        Blocks kept for checkpoints do not count: other sequences may take their room.
        """
        if self.sight.chunk or not super().can_shift(sequence, begin, end):
            return False
        length = self.length(sequence)
        first = self.sight.first(length - (end - begin))
        return first >= min(begin, self.sight.first(length))

    def retain(self, sequence: int, checkpoints: Sequence[int], *, short: bool = False) -> None:
        """Free the blocks that neither the next token nor one after a checkpoint would see.

        Parameters
        ----------
        checkpoints : sequence of int
            Positions that the sequence may be cut to; the last is its end.
        short : bool
            Check even if no block was filled since the last call.
        """
        length = self.length(sequence)
        # Nothing can go out of sight before another block is full.
        if not short and self._tidied.get(sequence) == length // self.block:
            return
        self._tidied[sequence] = length // self.block
        # The block that takes the next position stays, even without a position in sight.
        wanted = {length // self.block}
        for position in checkpoints:
            first = self.sight.first(position)
            wanted.update(range(first // self.block, -(-position // self.block)))
        self._table.forget(sequence, wanted.__contains__)
