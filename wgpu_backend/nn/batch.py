"""What one forward pass is given: tokens, where they stand, where their keys go, what is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.kvcache.cache import (
    Cache,
    Counts,
    Declared,
    GraphInputs,
    LayerState,
    Stored,
    ints,
)
from wgpu_backend.nn.model_inputs import Given

Span = tuple[int, int]
_NOTHING: Mapping[str, NDArray[Any]] = {}


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of one sequence for a pass, and which of them results are wanted for.

    Parameters
    ----------
    sequence : int
    tokens : sequence of int
    outputs : sequence of int
    inputs : mapping of str to ndarray
        What is given beside tokens, by the names of `Model.inputs`.
    spans : sequence of (int, int)
        First and last of tokens that see each other, such as those of an image.
    """

    sequence: int
    tokens: Sequence[int]
    outputs: Sequence[int] = ()
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=lambda: _NOTHING)
    spans: Sequence[Span] = ()

    @property
    def whole(self) -> bool:
        """Whether results are wanted for every token, in their order."""
        return list(self.outputs) == list(range(len(self.tokens)))


class BatchShape(NamedTuple):
    """What decides the graph of a batch; batches of one shape share a recorded graph.

    A tuple, since every step makes one and looks its graph up by it.

    Parameters
    ----------
    tokens : int
        Rows of the batch, padding included.
    outputs : int
        Rows that logits are wanted for. As many as tokens are all of them, in their order.
    sequences : int
        Sequences, padding included.
    longest : int
        Most positions any sequence has.
    given : tuple of str
        Inputs of `Model.inputs` that some work of the batch has values for.
    spans : bool
        Whether some work has tokens that see others that come later.
    """

    tokens: int
    outputs: int
    sequences: int
    longest: int
    given: tuple[str, ...] = ()
    spans: bool = False

    @property
    def whole(self) -> bool:
        """Whether every row is wanted, so that none are gathered."""
        return self.outputs == self.tokens


def declared(shape: BatchShape) -> Declared:
    """Inputs that every batch has."""
    return {
        **{name: ints(shape.tokens) for name in ("tokens", "positions", "sequences", "ends")},
        "starts": ints(shape.sequences + 1),
        "outputs": ints(shape.outputs),
    }


@dataclass(frozen=True, slots=True)
class Attended:
    """What a layer attends with, for who wants to see its weights.

    Parameters
    ----------
    q : (tokens, heads, k_cols), f32
    k : (tokens, kv_heads, k_cols), f32, or None
        None where the layer reads what another one has stored.
    scale, softcap : float
    window, chunk, symmetric_window : int
    causal : bool
    sinks : (heads,) or None
    besides : str
        What else goes into its scores, for people; empty for nothing.
    """

    q: Tensor
    k: Tensor | None
    scale: float
    softcap: float
    window: int
    chunk: int
    symmetric_window: int
    causal: bool
    sinks: Tensor | None
    besides: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass, as tensors of its graph.

    Parameters
    ----------
    context : Context
    shape : BatchShape
    tokens : (tokens,), i32
    inputs : GraphInputs
        All others, made when they are asked for.
    cache : Cache
    attended : dict of int to Attended
        By layer, filled while the graph is built.
    """

    context: Context
    shape: BatchShape
    tokens: Tensor
    inputs: GraphInputs
    cache: Cache
    attended: dict[int, Attended] = field(default_factory=dict[int, Attended])

    @property
    def positions(self) -> Tensor:
        """Position of each token in its sequence, -1 for padding: (tokens,), i32."""
        return self.inputs["positions"]

    @property
    def sequences(self) -> Tensor:
        """Which of the batch's sequences each token is of, 0 for padding: (tokens,), i32."""
        return self.inputs["sequences"]

    @property
    def starts(self) -> Tensor:
        """First row of each sequence, and one past the last's: (sequences + 1,), i32.

        Rows of a sequence are neighbours; padding comes behind all of them. Where sequences are
        padded, those have no rows.
        """
        return self.inputs["starts"]

    @property
    def ends(self) -> Tensor:
        """Last position that each token sees, in absolute positions: (tokens,), i32.

        The token's own, or that of its span's last; the text's last where the model is not causal;
        -1 for padding.
        """
        return self.inputs["ends"]

    def given(self, name: str) -> Tensor | None:
        """Input of `Model.inputs`; None where no work of the batch has values for it."""
        return self.inputs[name] if name in self.shape.given else None

    def given_rows(self, name: str) -> Tensor:
        """Row of the batch that each row of a `RowsInput` replaces, -1 for none: (tokens,), i32."""
        return self.inputs[f"{name}.rows"]

    def is_given(self, name: str) -> Tensor:
        """Whether each row of the batch has values of a `RowsInput`: (tokens, 1), bool."""
        return self.given_rows(name).reshape(-1, 1).greater_equal(self.context.from_ints([0]))

    def put(self, layer: int, key: Tensor, value: Tensor | None) -> Stored:
        """Write the batch's keys and values, and give what a layer may attend to.

        Parameters
        ----------
        layer : int
        key : (tokens, heads, k_cols), f32
        value : (tokens, heads, v_cols), f32, or None
            None where values are the first columns of keys.
        """
        return self.cache.put(layer, key, value, self.inputs)

    def stored(self, layer: int) -> Stored:
        """What a layer may attend to that stores nothing itself."""
        return self.cache.stored(layer, self.inputs)

    def encoded(self, layer: int) -> Stored:
        """What an encoder made for a layer, which every token of a sequence sees whole."""
        return self.cache.encoded(layer, self.inputs)

    def state(self, layer: int, name: str) -> LayerState:
        """A state of a recurrent layer."""
        return self.cache.state(layer, name, self.inputs)

    def wanted(self, x: Tensor) -> Tensor:
        """Rows of (tokens, cols) that results are wanted for: (outputs, cols)."""
        return x if self.shape.whole else x.rows(self.inputs["outputs"])


class BatchArrays:
    """Values of the inputs of a batch's graph, filled anew for each pass.

    Parameters
    ----------
    shape : BatchShape
    arrays : mapping of str to ndarray
        By the names of the graph's inputs, zeros at first. Others than `names` are left alone;
        those that the graph has no use for may be missing.
    cache : Cache
    given : mapping of str to Given
        What the model may be given beside tokens.
    causal : bool
        Whether tokens see none that come later.

    Attributes
    ----------
    names : set of str
        Of the inputs that `fill` fills.
    """

    def __init__(
        self,
        shape: BatchShape,
        arrays: Mapping[str, NDArray[Any]],
        cache: Cache,
        given: Mapping[str, Given],
        *,
        causal: bool = True,
    ) -> None:
        self._shape = shape
        self._cache = cache
        self._given = {name: given[name] for name in shape.given}
        self._causal = causal
        own = all_declared(shape, cache, given)
        self.names = set(own)
        self._arrays = {
            name: arrays[name] if name in arrays else np.zeros(extents, dtype.numpy)
            for name, (extents, dtype) in own.items()
        }
        self._sees_ahead = "ends" in arrays or any(name.endswith(".ends") for name in arrays)
        if shape.tokens == 1:
            self._arrays["starts"][1:] = 1

    def fill(self, works: Sequence[Work]) -> None:
        """Take room for the tokens of a pass and write down what its graph is given.

        Raises
        ------
        CacheFull
            There is not enough room; some sequences may have been extended.
        """
        if len(works) == self._shape.tokens == 1:
            counts = self._one(works[0])
        else:
            counts = self._several(works)
        for name, given in self._given.items():
            given.fill(name, self._arrays, [work.inputs.get(name) for work in works])
        self._cache.fill(self._arrays, counts)

    def _one(self, work: Work) -> Counts:
        """A single token, the step of a generation: scalars, and row 0 for all else."""
        arrays = self._arrays
        arrays["positions"][0] = arrays["ends"][0] = self._cache.length(work.sequence)
        arrays["tokens"][0] = work.tokens[0]
        return ((work.sequence, 1),)

    def _several(self, works: Sequence[Work]) -> Counts:
        arrays, outputs = self._arrays, list[int]()
        at = 0
        for row, work in enumerate(works):
            count, first = len(work.tokens), self._cache.length(work.sequence)
            here = slice(at, at + count)
            arrays["positions"][here] = np.arange(first, first + count)
            arrays["tokens"][here] = work.tokens
            arrays["sequences"][here] = row
            arrays["starts"][row + 1] = at + count
            outputs += [at + output for output in work.outputs]
            at += count
        # Rows behind the last token may be left from a fuller batch.
        arrays["positions"][at:] = -1
        arrays["tokens"][at:] = arrays["sequences"][at:] = 0
        arrays["starts"][len(works) + 1 :] = at
        if not self._shape.whole:
            arrays["outputs"][: len(outputs)] = outputs
            arrays["outputs"][len(outputs) :] = 0
        if self._sees_ahead:
            self._fill_ends(works)
        return [(work.sequence, len(work.tokens)) for work in works]

    def _fill_ends(self, works: Sequence[Work]) -> None:
        """Write down how far each token sees: to itself, to its span's end, or to the text's."""
        positions, ends = self._arrays["positions"], self._arrays["ends"]
        ends[...] = positions
        at = 0
        for work in works:
            last = at + len(work.tokens) - 1
            if not self._causal:
                ends[at : last + 1] = positions[last]
            for first, end in work.spans:
                ends[at + first : at + end + 1] = positions[at + end]
            at = last + 1


def all_declared(shape: BatchShape, cache: Cache, given: Mapping[str, Given]) -> Declared:
    """Inputs of a batch, of its cache, and of what works are given beside tokens."""
    inputs = dict(declared(shape))
    inputs |= cache.declared(shape.tokens, shape.sequences, shape.longest)
    for name in shape.given:
        inputs |= given[name].declared(name, shape.tokens, shape.sequences)
    return inputs
