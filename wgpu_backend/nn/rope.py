"""Rotary position embedding of a model: a table of angles once a graph, the rotation in layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.rope.options import RopeOptions

__all__ = ["RopeOptions", "Rotary"]


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
        """Rotate (tokens, heads, cols) by (tokens,) positions; (4, tokens) with sections."""
        return x.rope(self._table(positions), interleaved=self.options.interleaved)

    def turned(self, x: Tensor, by: int) -> Tensor:
        """Rotated (tokens, heads, cols) as they would be so many positions further on."""
        context = x.context
        frequencies = context.from_numpy(self._frequencies)
        positions = context.from_numpy(np.full(x.shape[0], by, np.int32))
        table = positions.rope_table(frequencies, magnitude=1.0)
        return x.rope(table, interleaved=self.options.interleaved)

    def _table(self, positions: Tensor) -> Tensor:
        context, key = positions.context, (self, positions)
        table = context.memo.get(key)
        if table is None:
            frequencies = context.from_numpy(self._frequencies)
            magnitude = self.options.magnitude
            if self.options.sections:
                streams = context.from_numpy(self.options.streams)
                table = positions.rope_table_streams(frequencies, streams, magnitude=magnitude)
            else:
                table = positions.rope_table(frequencies, magnitude=magnitude)
            context.memo[key] = table
        return table
