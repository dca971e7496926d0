"""The keys and values of an encoder's text, which a decoder attends to besides its own past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ContextError
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.kvcache.cache import Arrays, Counts, GraphInputs, InputSpecs, KeyValues, ints
from wgpu_backend.nn.kvcache.layers import EncodedShape, LayerShape
from wgpu_backend.nn.kvcache.paged import BLOCK, PagedCache
from wgpu_backend.ops.attention.paged import Pages

PREFIX = "encoded."
ENDS, TABLE = f"{PREFIX}ends", f"{PREFIX}table"


class EncodedCache(PagedCache):
    """A part of a `LayeredCache`: the keys and values of an encoder's text for each sequence.

    An encoder's pass takes slots with `begin` and writes them. Every token of the decoder attends
    to the whole text, whatever its own position. Truncating a sequence keeps its text; removing the
    whole sequence frees it.

    Parameters
    ----------
    positions : int
        Total positions of the texts of all sequences.
    dtype : DType
        See `PagedCache`.
    """

    unit: ClassVar[str] = f"blocks of {BLOCK} for texts"

    def __init__(
        self, executor: Executor, layers: Mapping[int, EncodedShape], positions: int, dtype: DType
    ) -> None:
        own: list[LayerShape | None] = [None] * (1 + max(layers))
        for layer, shape in layers.items():
            own[layer] = LayerShape(shape.key, shape.value)
        super().__init__(executor, own, positions, dtype, prefix=PREFIX)

    # For an encoder.

    def begin(self, sequence: int, tokens: int) -> NDArray[np.int32]:
        """Take slots for the text of a sequence, and free its previous text.

        Raises
        ------
        CacheFull
            There are not enough slots; the sequence is then without a text.
        """
        self._table.drop(sequence)
        return np.array(self._table.extend(sequence, tokens), np.int32)

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> Sequence[Tensor]:
        """Write keys and values (tokens, cols) of a text; ``slots`` of padding are -1."""
        states = self._get_states(layer)
        return [states["key"].set_rows(key, slots), states["value"].set_rows(value, slots)]

    # For graphs of the decoder.

    def input_specs(self, tokens: int, sequences: int, longest: int) -> InputSpecs:
        """Return the specifications of each text's end, and of the blocks of texts."""
        return {ENDS: ints(tokens), TABLE: ints(sequences, self.positions // BLOCK)}

    def reach(self, longest: int, tokens: int) -> int:
        """Return 0: no positions of the decoder's sequences are stored here."""
        return 0

    def put(self, layer: int, key: Tensor, value: Tensor | None, inputs: GraphInputs) -> KeyValues:
        """Raise: a decoder does not write here."""
        raise ContextError(
            f"cache: layer {layer} is only read in this cache; an encoder's pass writes it"
        )

    def encoder_key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Return the keys and values of the texts of a batch's sequences."""
        states = self._get_states(layer)
        pages = inputs.pages(self, lambda: self._pages(inputs))
        return KeyValues(states["key"], states["value"], pages, self.positions, inputs, ENDS)

    def _pages(self, inputs: GraphInputs) -> Pages:
        # Each token gets the position of the text's end, so that causal attention sees all of it.
        return Pages(inputs[ENDS], inputs["sequences"], inputs[TABLE], BLOCK)

    # For `LayeredCache`.

    @property
    def free_positions(self) -> int:
        """Return a bound that is never reached: the decoder's tokens take no room."""
        return 1 << 30

    def shortage(self, counts: Counts) -> int:
        """Return 0: the decoder's tokens take no room."""
        return 0

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Write the texts of a pass's sequences."""
        self.fill_table(arrays[TABLE], [sequence for sequence, _ in counts])
        ends, at = arrays[ENDS], 0
        for sequence, count in counts:
            ends[at : at + count] = self.length(sequence) - 1
            at += count
        ends[at:] = -1

    def resume_point(self, sequence: int, position: int) -> int:
        """Return the position: a decoder can resume anywhere."""
        return max(position, 0)

    def require_truncate(self, sequence: int, length: int) -> None:
        """Do nothing: `truncate` always succeeds."""

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the text."""

    def require_share(self, source: int, target: int, length: int) -> None:
        """Raise if `share` would."""
        self._table.require_share(source, target, self.length(source))

    def share(self, source: int, target: int, length: int) -> None:
        """Share the whole text with `target`, if `target` gets any positions."""
        if length:
            super().share(source, target, self.length(source))
        else:
            self.drop(target)

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Return True: texts do not move."""
        return True

    def require_cut_out(self, sequence: int, begin: int, end: int) -> None:
        """Do nothing: `shift` always succeeds."""

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Leave the text where it is."""
