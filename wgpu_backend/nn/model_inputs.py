"""What a pass is given beside tokens, as a model declares it: one kind for each way of counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F32, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.nn.kvcache.cache import Arrays, Declared, ints

Array = NDArray[Any]


class Given(Protocol):
    """An input that a work may have values for."""

    def declared(self, name: str, tokens: int, sequences: int) -> Declared:
        """Inputs of the graph that it takes, in a batch of so many rows."""
        ...

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Write down what each work of a pass has; None where one has nothing.

        Raises
        ------
        ShapeError
            Values are not of the shape that was declared.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Values for every token, such as positions along several axes.

    Parameters
    ----------
    shape : tuple of int
        Of a token's values.
    dtype : DType
    positions : bool
        Tokens of a work without values have their position, in each of them; else 0.
    """

    shape: tuple[int, ...] = ()
    dtype: DType = F32
    positions: bool = False

    def declared(self, name: str, tokens: int, sequences: int) -> Declared:
        """Values of all rows: (tokens, *shape)."""
        return {name: ((tokens, *self.shape), self.dtype)}

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Write down values of the works; a work has as many as it has tokens."""
        into, starts = arrays[name], arrays["starts"]
        rest = (1,) * len(self.shape)
        into[...] = arrays["positions"].reshape(-1, *rest) if self.positions else 0
        for row, array in enumerate(values):
            if array is not None:
                begin, end = int(starts[row]), int(starts[row + 1])
                into[begin:end] = _shaped(name, array, (end - begin, *self.shape))


@dataclass(frozen=True, slots=True)
class RowsInput:
    """Values for some tokens: embeddings of an image in the places of its tokens.

    A work gives (tokens, cols), with NaN in the first column of rows that it has none for. The
    model takes them in place of its own: ``batch.is_given(name).where(batch.given(name), x)``.

    Parameters
    ----------
    cols : int
    """

    cols: int

    def declared(self, name: str, tokens: int, sequences: int) -> Declared:
        """Values (tokens, cols), and the row of the batch that each replaces, -1 for none."""
        return {name: ((tokens, self.cols), F32), f"{name}.rows": ints(tokens)}

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Write down the rows that there are values for."""
        into, rows, starts = arrays[name], arrays[f"{name}.rows"], arrays["starts"]
        rows[...] = -1
        for row, array in enumerate(values):
            if array is None:
                continue
            begin, end = int(starts[row]), int(starts[row + 1])
            shaped = _shaped(name, array, (end - begin, self.cols))
            there = np.flatnonzero(~np.isnan(shaped[:, 0]))
            into[begin + there], rows[begin + there] = shaped[there], begin + there


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """Values for every sequence of a pass, such as the grid of its image.

    Parameters
    ----------
    shape : tuple of int
    dtype : DType
    """

    shape: tuple[int, ...] = ()
    dtype: DType = F32

    def declared(self, name: str, tokens: int, sequences: int) -> Declared:
        """Values of all sequences: (sequences, *shape)."""
        return {name: ((sequences, *self.shape), self.dtype)}

    def fill(self, name: str, arrays: Arrays, values: Sequence[Array | None]) -> None:
        """Write down values of each work; 0 where one has none."""
        into = arrays[name]
        into[...] = 0
        for row, array in enumerate(values):
            if array is not None:
                into[row] = _shaped(name, array, self.shape)


def unknown(names: Sequence[str], known: Mapping[str, Given]) -> list[str]:
    """Those of `names` that nobody declared."""
    return [name for name in names if name not in known]


def _shaped(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape != shape:
        raise ShapeError(f"input {name}: a work gives {array.shape}, needs {shape}")
    return array
