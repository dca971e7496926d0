"""Results of a batch, by the places of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.pooling import BY_NUMBER, pooled
from wgpu_backend.errors import ContextError, OptionError
from wgpu_backend.llama.model import Model
from wgpu_backend.ml.context import Context as Graph

Rows = NDArray[np.float32]
UNSPECIFIED = -1


class Results:
    """Rows that a call of `Context.decode` made.

    Parameters
    ----------
    pooling : int
        ``LLAMA_POOLING_TYPE_…``; -1 for what the file says, or none.

    Raises
    ------
    OptionError
        There is no such pooling.
    """

    def __init__(self, model: Model, pooling: int) -> None:
        self._model = model
        own = model.config.uint("pooling_type", 0)
        self.pooling = own if pooling == UNSPECIFIED else pooling
        if not 0 <= self.pooling < len(BY_NUMBER):
            raise OptionError(f"pooling_type: {pooling}, needs -1 to {len(BY_NUMBER) - 1}")
        self.begin(False)

    def begin(self, states: bool) -> None:
        """Have nothing; what is added now are states, or logits."""
        self.forget()
        self.states = states

    def forget(self) -> None:
        """Have nothing."""
        self._rows: list[Rows] = []
        self._places: list[int] = []
        self._sequences: list[int] = []

    def add(self, places: Sequence[int], sequences: Sequence[int], rows: Rows) -> None:
        """Take in the rows of a pass, padding behind them."""
        self._rows.extend(np.array(rows[: len(places)]))
        self._places.extend(places)
        self._sequences.extend(sequences)

    def rows(self, what: str, *, states: bool) -> Rows:
        """All rows, in the order of the batch."""
        self._require(what, states)
        order = sorted(i for i, place in enumerate(self._places) if place >= 0)
        order.sort(key=lambda i: self._places[i])
        return np.stack([self._rows[i] for i in order])

    def row(self, what: str, i: int, *, states: bool) -> Rows:
        """Row of a token by its place in the batch, or counted from the last row there is."""
        self._require(what, states)
        mine = sorted(place for place in self._places if place >= 0)
        if i < 0 and -i <= len(mine):
            i = mine[i]
        if i not in mine:
            raise ContextError(
                f"{what}: of token {i} none are there, the batch asked for {len(mine)}: {mine[:8]}"
            )
        return self._rows[self._places.index(i)]

    def _require(self, what: str, states: bool) -> None:
        if not self._rows:
            raise ContextError(f"{what}: no batch was computed that asked for any")
        if states != self.states:
            given = "embeddings" if self.states else "logits"
            raise ContextError(f"{what}: the context gives {given}; see set_embeddings")

    def pooled(self, sequence: int) -> Rows:
        """State of a sequence, or its scores.

        Raises
        ------
        ContextError
            The batch has no token of it, or states are not pooled.
        """
        mine = [
            row for row, each in zip(self._rows, self._sequences, strict=True) if each == sequence
        ]
        name = BY_NUMBER[self.pooling]
        if not mine or name == "none":
            raise ContextError(
                f"embeddings: sequence {sequence} has {len(mine)} states, pooling is {name}; needs "
                "some, and a pooling_type"
            )
        base = self._model.language.model
        how = base.scored_pooling if name == "rank" else name
        state = pooled(np.stack(mine), how)[None]
        with Graph(self._model.language.backend.executor) as graph:
            x = graph.from_numpy(state)
            made = base.score(x) if name == "rank" else base.vector(x)
            return state[0] if made is x else made.numpy()[0]
