"""The inputs of one forward pass: tokens, positions, cache slots and requested output rows."""

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
    GraphInputs,
    InputSpecs,
    KeyValues,
    LayerState,
    ints,
)
from wgpu_backend.nn.model_inputs import ModelInput
from wgpu_backend.nn.module import old_names

Span = tuple[int, int]
_NOTHING: Mapping[str, NDArray[Any]] = {}


@dataclass(frozen=True, slots=True)
class Work:
    """A chunk of one sequence's tokens for a pass, and the rows whose results are requested.

    Parameters
    ----------
    outputs : sequence of int
        Places in `tokens` whose results are requested.
    inputs : mapping of str to ndarray
        Model inputs in addition to tokens, by the names of `Model.inputs`.
    spans : sequence of (int, int)
        First and last token of each span whose tokens attend to each other, as those of an image.
    """

    sequence: int
    tokens: Sequence[int]
    outputs: Sequence[int] = ()
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=lambda: _NOTHING)
    spans: Sequence[Span] = ()

    @property
    def whole(self) -> bool:
        """Return whether results of every token are requested, in their order."""
        return list(self.outputs) == list(range(len(self.tokens)))


@old_names(given="inputs")
class BatchShape(NamedTuple):
    """The key of a batch's graph: batches of one shape share a recorded graph.

    It is a tuple because every step makes one and looks up its graph by it.

    Parameters
    ----------
    tokens : int
        Rows of the batch, padding included.
    outputs : int
        Output rows. As many as `tokens` means all of them, in their order.
    sequences : int
        Sequences, padding included.
    longest : int
        Most positions of any sequence.
    inputs : tuple of str
        Names of `Model.inputs` that some chunk of the batch has values for.
    spans : bool
        Whether some chunk has tokens that attend to later tokens.
    """

    tokens: int
    outputs: int
    sequences: int
    longest: int
    inputs: tuple[str, ...] = ()
    spans: bool = False

    @property
    def whole(self) -> bool:
        """Return whether every row is an output, so that none are gathered."""
        return self.outputs == self.tokens


def input_specs(shape: BatchShape) -> InputSpecs:
    """Return the specifications of the inputs that every batch has."""
    return {
        **{name: ints(shape.tokens) for name in ("tokens", "positions", "sequences", "ends")},
        # One more than there are sequences: the end of the last is the start of the next.
        "starts": ints(shape.sequences + 1),
        "outputs": ints(shape.outputs),
    }


@dataclass(frozen=True, slots=True)
class Attended:
    """The operands of a layer's attention, kept so that its weights can be shown.

    Parameters
    ----------
    q : (tokens, heads, k_cols), f32
    k : (tokens, kv_heads, k_cols), f32, or None
        None where the layer reads keys that another layer stored.
    sinks : (heads,) or None
    besides : str
        Further terms of the scores, in words; empty for none.
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


@old_names(
    given="input",
    is_given="input_mask",
    given_rows="input_rows",
    encoded="encoder_key_values",
    stored="key_values",
)
@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass, as tensors of its graph.

    Parameters
    ----------
    tokens : (tokens,), i32
    inputs : GraphInputs
        All other inputs, made on first use.
    attended : dict of int to Attended
        Operands by layer, filled while the graph is built.
    """

    context: Context
    shape: BatchShape
    tokens: Tensor
    inputs: GraphInputs
    cache: Cache
    attended: dict[int, Attended] = field(default_factory=dict[int, Attended])

    @property
    def positions(self) -> Tensor:
        """Return each token's position in its sequence, -1 for padding: (tokens,), i32."""
        return self.inputs["positions"]

    @property
    def sequences(self) -> Tensor:
        """Return the index of each token's sequence, 0 for padding: (tokens,), i32."""
        return self.inputs["sequences"]

    @property
    def starts(self) -> Tensor:
        """Return the first row of each sequence, and the end of the last: (sequences + 1,), i32.

        Rows of a sequence are contiguous; padding follows all of them. Padding sequences have no
        rows.
        """
        return self.inputs["starts"]

    @property
    def ends(self) -> Tensor:
        """Return the last position that each token attends to: (tokens,), i32.

        It is the token's own position, or that of its span's last token. Where the model is not
        causal it is the text's last position. Padding has -1.
        """
        return self.inputs["ends"]

    def input(self, name: str) -> Tensor | None:
        """Return a model input; None where no chunk of the batch has values for it."""
        return self.inputs[name] if name in self.shape.inputs else None

    def has(self, name: str) -> bool:
        """Return whether some sequence of the batch has a model input."""
        return name in self.shape.inputs

    def input_rows(self, name: str) -> Tensor:
        """Return the row that each row of a `RowsInput` replaces, -1 for none: (tokens,), i32."""
        return self.inputs[f"{name}.rows"]

    def input_mask(self, name: str) -> Tensor:
        """Return whether each row has values of a `RowsInput`: (tokens, 1), bool."""
        return self.input_rows(name).reshape(-1, 1).greater_equal(self.context.from_ints([0]))

    def put(self, layer: int, key: Tensor, value: Tensor | None) -> KeyValues:
        """Write the batch's keys and values, and return those the layer may attend to.

        Parameters
        ----------
        key : (tokens, heads, k_cols), f32
        value : (tokens, heads, v_cols), f32, or None
            None where values are the first columns of keys.
        """
        return self.cache.put(layer, key, value, self.inputs)

    def key_values(self, layer: int) -> KeyValues:
        """Return the keys and values that a layer reads without writing any."""
        return self.cache.key_values(layer, self.inputs)

    def encoder_key_values(self, layer: int) -> KeyValues:
        """Return an encoder's keys and values for a layer; every token sees all of them."""
        return self.cache.encoder_key_values(layer, self.inputs)

    def state(self, layer: int, name: str) -> LayerState:
        """Return a state of a recurrent layer."""
        return self.cache.state(layer, name, self.inputs)

    def select_outputs(self, x: Tensor) -> Tensor:
        """Select the output rows of (tokens, cols): (outputs, cols)."""
        return x if self.shape.whole else x.rows(self.inputs["outputs"])

    # The earlier name, which models outside the package may call.
    wanted = select_outputs


class BatchArrays:
    """The values of the inputs of a batch's graph, written again for each pass.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Arrays by the names of the graph's inputs, zeros at first. Only `names` are written;
        inputs that the graph does not use may be missing.
    extra_inputs : mapping of str to ModelInput
        Model inputs in addition to tokens.
    causal : bool
        Whether tokens attend to earlier tokens only.

    Attributes
    ----------
    names : set of str
        Names of the inputs that `fill` writes.
    """

    def __init__(
        self,
        shape: BatchShape,
        arrays: Mapping[str, NDArray[Any]],
        cache: Cache,
        extra_inputs: Mapping[str, ModelInput],
        *,
        causal: bool = True,
    ) -> None:
        self._shape = shape
        self._cache = cache
        self._extra_inputs = {name: extra_inputs[name] for name in shape.inputs}
        self._causal = causal
        own = all_input_specs(shape, cache, extra_inputs)
        self.names = set(own)
        # Inputs that the graph does not read get an array here, so that `fill` writes all alike.
        self._arrays = {
            name: arrays[name] if name in arrays else np.zeros(extents, dtype.numpy)
            for name, (extents, dtype) in own.items()
        }
        # Graphs of causal batches without spans do not read the ends, which are then not computed.
        self._sees_ahead = "ends" in arrays or any(name.endswith(".ends") for name in arrays)
        # A single token always has the same starts, so `_one` does not write them.
        if shape.tokens == 1:
            self._arrays["starts"][1:] = 1

    def fill(self, works: Sequence[Work]) -> None:
        """Take cache room for the tokens of a pass, and write the inputs of its graph.

        Raises
        ------
        CacheFull
            There is not enough room; some sequences may have been extended.
        """
        # Most passes of a generation have one token, and scalars are faster to write than slices.
        if len(works) == self._shape.tokens == 1:
            counts = self._one(works[0])
        else:
            counts = self._several(works)
        for name, extra in self._extra_inputs.items():
            extra.fill(name, self._arrays, [work.inputs.get(name) for work in works])
        # Last, since it reads the batch's arrays and extends the lengths that positions start from.
        self._cache.fill(self._arrays, counts)

    def _one(self, work: Work) -> Counts:
        """Write a pass of one token, as in a decode step: a fast path without arrays of rows."""
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
        # Rows after the last token may hold values of an earlier, fuller batch.
        arrays["positions"][at:] = -1
        arrays["tokens"][at:] = arrays["sequences"][at:] = 0
        # Padding sequences start where they end, so that they have no rows.
        arrays["starts"][len(works) + 1 :] = at
        if not self._shape.whole:
            arrays["outputs"][: len(outputs)] = outputs
            # Padding gathers row 0, which exists in every batch.
            arrays["outputs"][len(outputs) :] = 0
        if self._sees_ahead:
            self._fill_ends(works)
        return [(work.sequence, len(work.tokens)) for work in works]

    def _fill_ends(self, works: Sequence[Work]) -> None:
        """Write how far each token sees: to itself, its span's end, or the end of the text."""
        positions, ends = self._arrays["positions"], self._arrays["ends"]
        ends[...] = positions
        at = 0
        for work in works:
            last = at + len(work.tokens) - 1
            if not self._causal:
                ends[at : last + 1] = positions[last]
            # Tokens of a picture see each other; those after it see all of it anyway.
            for first, end in work.spans:
                ends[at + first : at + end + 1] = positions[at + end]
            at = last + 1


def all_input_specs(
    shape: BatchShape, cache: Cache, extra_inputs: Mapping[str, ModelInput]
) -> InputSpecs:
    """Return the specifications of the inputs of a batch, its cache and its model inputs."""
    inputs = dict(input_specs(shape))
    inputs |= cache.input_specs(shape.tokens, shape.sequences, shape.longest)
    for name in shape.inputs:
        inputs |= extra_inputs[name].input_specs(name, shape.tokens, shape.sequences)
    return inputs
