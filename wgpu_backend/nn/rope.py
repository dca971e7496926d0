"""Rotary position embedding: a table of angles once per graph, and the rotation in layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import I32
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.model_inputs import TokenInput
from wgpu_backend.nn.module import old_names
from wgpu_backend.ops.attention.options import RopeOptions

__all__ = ["RopeOptions", "Rotary"]

POSITIONS = "rope_positions"
# Time, height and width as in Qwen2-VL; for a text token all three are its position.
SEVERAL = TokenInput((3,), I32, positions=True)

Factors = NDArray[np.float32]


@old_names(turned="rotate_by")
class Rotary:
    """The rotation of one model: frequencies once, a table of angles once per graph.

    Parameters
    ----------
    factors : (dims / 2,) or None
        Divisors of the frequencies.
    long_factors : (dims / 2,) or None
        Used instead for contexts longer than ``options.original_context``.
    """

    def __init__(
        self,
        options: RopeOptions,
        factors: Factors | None = None,
        long_factors: Factors | None = None,
    ) -> None:
        self.options = options
        self._short = self._frequencies = options.frequencies(factors)
        self._long = self._short if long_factors is None else options.frequencies(long_factors)

    def fit_context(self, positions: int) -> None:
        """Choose frequencies for `positions` positions; call it before the first graph."""
        # One choice for all sequences: keys cached with one set do not fit queries with the other.
        long = positions > self.options.original_context
        self._frequencies = self._long if long else self._short

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate (tokens, heads, cols) by positions.

        Parameters
        ----------
        x : (tokens, heads, cols), f32
        positions : (tokens,), i32
            With sections several per token: (count, tokens), or flattened. A section beyond `count`
            uses the first position.
        """
        table = self._table(positions, x.shape[0])
        return x.rope(table, interleaved=self.options.interleaved)

    def positions(self, batch: Batch) -> Tensor:
        """Return a batch's positions for `__call__`; time, height and width if it has them."""
        several = batch.input(POSITIONS) if self.options.sections else None
        if several is None:
            return batch.positions
        # The input has one row per token, the table takes one per axis; all layers share the copy.
        memo, key = batch.context.memo, (POSITIONS, several)
        found = memo.get(key)
        if found is None:
            found = memo[key] = several.transpose().contiguous()
        return found

    def rotate_by(self, x: Tensor, by: int) -> Tensor:
        """Rotate already rotated (tokens, heads, cols) by `by` more positions.

        Angles of rotations add up (Su et al. 2021, §3.2.2). With several positions per token, all
        of them move by the same distance.
        """
        context = x.context
        frequencies = context.from_numpy(self._frequencies)
        positions = context.from_numpy(np.full(x.shape[0], by, np.int32))
        # Cached keys have YaRN's magnitude already, so a second factor would scale them twice.
        table = positions.rope_table(frequencies, magnitude=1.0)
        return x.rope(table, interleaved=self.options.interleaved)

    def _table(self, positions: Tensor, tokens: int) -> Tensor:
        # `self` is in the key because layers with a window may rotate by other frequencies.
        context, key = positions.context, (self, positions)
        table = context.memo.get(key)
        if table is None:
            table = context.memo[key] = self._new_table(positions, positions.spec.size // tokens)
        return table

    def _new_table(self, positions: Tensor, count: int) -> Tensor:
        context, magnitude = positions.context, self.options.magnitude
        frequencies = context.from_numpy(self._frequencies)
        if count == 1:
            return positions.rope_table(frequencies, magnitude=magnitude)
        axes = self.options.axes
        axes = context.from_numpy(np.where(axes < count, axes, 0))
        return positions.rope_table_axes(frequencies, axes, count=count, magnitude=magnitude)
