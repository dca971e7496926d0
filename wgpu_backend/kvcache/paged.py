"""The causal cache: keys and values of every layer in blocks that sequences share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F16, F32, Q4_0, Q8_0, DType
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kvcache.blocks import BlockTable
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor, leaf

BLOCK = 32
CACHE_TYPES = (F16, F32, Q8_0, Q4_0)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Values that one position takes in a layer's cache."""

    key: int
    value: int


def _require_type(dtype: DType, layers: Sequence[LayerShape]) -> None:
    if dtype not in CACHE_TYPES:
        wanted = ", ".join(map(str, CACHE_TYPES))
        raise DTypeError(f"cache: {dtype}, needs one of {wanted}")
    if not dtype.quantised:
        return
    for i, shape in enumerate(layers):
        for what, cols in (("keys", shape.key), ("values", shape.value)):
            if cols % dtype.block:
                raise ShapeError(
                    f"cache: {what} of layer {i} have {cols} values a position, {dtype} needs "
                    f"heads of a multiple of {dtype.block}; choose f16"
                )


class PagedCache:
    """Keys and values of past tokens.

    The first half is for models, the second for what manages sequences.

    Parameters
    ----------
    executor : Executor
    layers : sequence of LayerShape
    positions : int
        Positions over all sequences; rounded up to whole blocks.
    dtype : DType
        f16, f32, q8_0 or q4_0. Values in blocks are rounded as they are written; heads have to be
        whole blocks of 32.

    Raises
    ------
    DTypeError
        The type is another.
    ShapeError
        A position is not made of whole blocks of the type.
    OutOfMemory
        The cache does not fit; nothing stays allocated.
    """

    def __init__(
        self,
        executor: Executor,
        layers: Sequence[LayerShape],
        positions: int,
        dtype: DType = F16,
    ) -> None:
        _require_type(dtype, layers)
        self.block = BLOCK
        self._executor = executor
        blocks = -(-positions // BLOCK)
        self.positions = blocks * BLOCK
        self._table = BlockTable(blocks, BLOCK)
        self._storages: list[Storage] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        try:
            for i, shape in enumerate(layers):
                self._keys.append(self._state(shape.key, dtype, f"cache.{i}.key"))
                self._values.append(self._state(shape.value, dtype, f"cache.{i}.value"))
        except BaseException:
            self.close()
            raise

    def _state(self, cols: int, dtype: DType, label: str) -> Tensor:
        spec = Spec.dense((self.positions, cols), dtype)
        storage = self._executor.state(spec, label)
        self._storages.append(storage)
        return leaf(spec, storage)

    # For models.

    def put(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Write a batch's keys and values, and give the whole cache of the layer.

        Parameters
        ----------
        layer : int
        key, value : (tokens, heads, cols), f32
        slots : (tokens,), i32

        Returns
        -------
        (positions, heads * cols) for keys and for values
        """
        tokens = slots.shape[0]
        keys = self._keys[layer].set_rows(key.reshape(tokens, -1), slots)
        values = self._values[layer].set_rows(value.reshape(tokens, -1), slots)
        return keys, values

    # For what manages sequences.

    def length(self, sequence: int) -> int:
        """Positions of a sequence that are cached."""
        return self._table.length(sequence)

    @property
    def free_positions(self) -> int:
        """Positions in blocks that nobody holds."""
        return self._table.free * self.block

    def extend(self, sequence: int, tokens: int) -> list[int]:
        """Slots for the next positions of a sequence; CacheFull where none are left."""
        return self._table.extend(sequence, tokens)

    def fill_table(self, table: NDArray[np.int32], sequences: Sequence[int]) -> None:
        """Write the block table of these sequences, a row each; unused entries become 0."""
        table[...] = 0
        for row, sequence in enumerate(sequences):
            blocks = self._table.blocks_of(sequence)
            table[row, : len(blocks)] = blocks

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Share the first positions of one sequence with another.

        Raises
        ------
        CacheFull
            The prefix ends inside a block and no block is free; nothing has changed.
        """
        self._copy_slots(target, self._table.share(source, target, length))

    def remove(self, sequence: int, begin: int = 0) -> None:
        """Forget the positions of a sequence from `begin` on.

        Raises
        ------
        CacheFull
            Others hold the block `begin` lies inside of and no block is free; nothing has changed.
        """
        if begin <= 0:
            self._table.drop(sequence)
        else:
            self._copy_slots(sequence, self._table.truncate(sequence, begin))

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether generation may go on at `position`."""
        return position <= self.length(sequence)

    def _copy_slots(self, sequence: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy positions for a sequence, which is forgotten if that fails."""
        # Blocks are read as floats and rounded again, which gives the same blocks: the largest
        # value of each is a whole quant of its scale.
        if not pairs:
            return
        try:
            with Context(self._executor) as context:
                old = context.from_ints([a for a, _ in pairs])
                new = context.from_ints([b for _, b in pairs])
                states = [*self._keys, *self._values]
                context.compute(*(s.set_rows(s.rows(old), new) for s in states))
        except BaseException:
            self._table.drop(sequence)
            raise

    def close(self) -> None:
        """Release the device memory; again is harmless."""
        for storage in self._storages:
            self._executor.free(storage)
        self._storages.clear()
