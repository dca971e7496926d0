"""Extra model inputs per token, per row or per sequence, as a model declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F32, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.nn.kvcache.cache import Arrays, InputSpecs, ints

Array = NDArray[Any]


class ModelInput(Protocol):
    """An input in addition to tokens, which a chunk may have values for."""

    def input_specs(self, name: str, tokens: int, sequences: int) -> InputSpecs:
        """Return the graph inputs that the model input needs in a batch of this size."""
        ...

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Write the values of each chunk of a pass into the arrays; None for chunks without values.

        Raises
        ------
        ShapeError
            Values do not have the declared shape.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Values for every token, such as positions along several axes.

    Parameters
    ----------
    shape : tuple of int
        Shape of the values of one token.
    positions : bool
        Whether tokens of a chunk without values get their position in every element; else 0.
    """

    shape: tuple[int, ...] = ()
    dtype: DType = F32
    positions: bool = False

    def input_specs(self, name: str, tokens: int, sequences: int) -> InputSpecs:
        """Return the specification of the values of all rows: (tokens, *shape)."""
        return {name: ((tokens, *self.shape), self.dtype)}

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Write the values of the chunks; a chunk has values for each of its tokens."""
        into, starts = arrays[name], arrays["starts"]
        rest = (1,) * len(self.shape)
        into[...] = arrays["positions"].reshape(-1, *rest) if self.positions else 0
        for row, array in enumerate(values):
            if array is not None:
                begin, end = int(starts[row]), int(starts[row + 1])
                into[begin:end] = _check_shape(name, array, (end - begin, *self.shape))


@dataclass(frozen=True, slots=True)
class RowsInput:
    """Values for some tokens: embeddings of an image in place of its tokens.

    A chunk has (tokens, cols), with NaN in the first column of rows without values. The model
    replaces its own rows by them: ``batch.input_mask(name).where(batch.input(name), x)``.
    """

    cols: int

    def input_specs(self, name: str, tokens: int, sequences: int) -> InputSpecs:
        """Return the specification of the values (tokens, cols), and of the row each replaces."""
        # The row is -1 where a token has no values.
        return {name: ((tokens, self.cols), F32), f"{name}.rows": ints(tokens)}

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Write the rows that have values, and their row numbers."""
        into, rows, starts = arrays[name], arrays[f"{name}.rows"], arrays["starts"]
        rows[...] = -1
        for row, array in enumerate(values):
            if array is None:
                continue
            begin, end = int(starts[row]), int(starts[row + 1])
            shaped = _check_shape(name, array, (end - begin, self.cols))
            there = np.flatnonzero(~np.isnan(shaped[:, 0]))
            into[begin + there], rows[begin + there] = shaped[there], begin + there


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """Values for every sequence of a pass, such as the grid of its image."""

    shape: tuple[int, ...] = ()
    dtype: DType = F32

    def input_specs(self, name: str, tokens: int, sequences: int) -> InputSpecs:
        """Return the specification of the values of all sequences: (sequences, *shape)."""
        return {name: ((sequences, *self.shape), self.dtype)}

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Write the values of each chunk; 0 where a chunk has none."""
        into = arrays[name]
        into[...] = 0
        for row, array in enumerate(values):
            if array is not None:
                into[row] = _check_shape(name, array, self.shape)


STATES = "states"
"""The name of the model input of an `AttendedInput`."""


@dataclass(frozen=True, slots=True)
class AttendedInput:
    """Rows of a picture that later tokens cross-attend to, instead of rows of the prompt.

    A chunk whose first token stands for a picture has (rows, cols). Their keys and values are
    written to the cache before the pass, which reads them there.
    """

    cols: int

    def input_specs(self, name: str, tokens: int, sequences: int) -> InputSpecs:
        """Return nothing: the cache declares what a graph reads."""
        return {}

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Do nothing: the cache fills its inputs."""


def find_unknown(names: Sequence[str], known: Mapping[str, ModelInput]) -> list[str]:
    """Return the names that the model does not declare."""
    return [name for name in names if name not in known]


def _check_shape(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape != shape:
        raise ShapeError(f"input {name}: its shape is {array.shape}, needs {shape}")
    return array
