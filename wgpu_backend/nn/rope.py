"""Rotary position embedding of a model: a table of angles once a graph, the rotation in layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import I32
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.model_inputs import TokenInput
from wgpu_backend.ops.attention.options import RopeOptions

__all__ = ["RopeOptions", "Rotary"]

POSITIONS = "rope_positions"
# Time, height and width, as Qwen2-VL has them; a token of text has its position in all three.
SEVERAL = TokenInput((3,), I32, positions=True)

Factors = NDArray[np.float32]


class Rotary:
    """The rotation of one model: frequencies once, a table of angles once a graph.

    Parameters
    ----------
    options : RopeOptions
    factors : (dims / 2,) or None
    long_factors : (dims / 2,) or None
        In their place once a sequence may be longer than ``options.original_context``.
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
        """Rotate by what suits sequences of so many positions; before the first graph."""
        long = positions > self.options.original_context
        self._frequencies = self._long if long else self._short

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate (tokens, heads, cols) by positions.

        Parameters
        ----------
        x : (tokens, heads, cols), f32
        positions : (tokens,), i32
            Or with sections several of each token, (count, tokens) or one behind the other. A
            section beyond `count` turns by the first.
        """
        table = self._table(positions, x.shape[0])
        return x.rope(table, interleaved=self.options.interleaved)

    def positions(self, batch: Batch) -> Tensor:
        """Positions of a batch, for `__call__`: of time, height and width where they are given."""
        given = batch.input(POSITIONS) if self.options.sections else None
        if given is None:
            return batch.positions
        memo, key = batch.context.memo, (POSITIONS, given)
        found = memo.get(key)
        if found is None:
            found = memo[key] = given.transpose().contiguous()
        return found

    def rotate_by(self, x: Tensor, by: int) -> Tensor:
        """Rotated (tokens, heads, cols) as they would be so many positions further on.

        Rotations add up (Su et al. 2021, §3.2.2), whatever the frequencies are; with several
        positions a token, all of them move as far.
        """
        context = x.context
        frequencies = context.from_numpy(self._frequencies)
        positions = context.from_numpy(np.full(x.shape[0], by, np.int32))
        table = positions.rope_table(frequencies, magnitude=1.0)
        return x.rope(table, interleaved=self.options.interleaved)

    def _table(self, positions: Tensor, tokens: int) -> Tensor:
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
