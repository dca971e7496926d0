"""Recurrent layers, whose state each token of a sequence updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from wgpu_backend.array.elementwise import sigmoid, tanh
from wgpu_backend.array.manipulation import split, stack
from wgpu_backend.array.nn.layer_helpers import draw
from wgpu_backend.array.nn.module import Module
from wgpu_backend.array.products import matmul

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def _rows(rows: int, cols: int) -> Array:
    return draw(rows, cols, scale=1 / math.sqrt(3 * cols))


class RNN(Module):
    """``h = tanh(Wxh x + Whh h + bias)`` for each token (Elman 1990).

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
    nonlinearity : callable or None
        None is tanh.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Callable[[Array], Array] | None = None,
    ) -> None:
        self.hidden_size = hidden_size
        self.Wxh, self.Whh = _rows(hidden_size, input_size), _rows(hidden_size, hidden_size)
        self.bias = draw(hidden_size, scale=1 / math.sqrt(3 * hidden_size)) if bias else None
        self._nonlinearity: Callable[[Array], Array] = nonlinearity or tanh

    def __call__(self, x: Array, hidden: Array | None = None) -> Array:
        """Map (..., tokens, input_size) to the states (..., tokens, hidden_size)."""
        inputs = matmul(x, self.Wxh.T)
        inputs = inputs if self.bias is None else inputs + self.bias
        states: list[Array] = []
        for token in range(x.shape[-2]):
            given = inputs[..., token, :]
            total = given if hidden is None else given + matmul(hidden, self.Whh.T)
            hidden = self._nonlinearity(total)
            states.append(hidden)
        return stack(states, axis=-2)


class _Gated(Module):
    """Weights of several gates, joined."""

    gates: ClassVar[int]

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.Wx = _rows(self.gates * hidden_size, input_size)
        self.Wh = _rows(self.gates * hidden_size, hidden_size)

    def _bias(self, count: int) -> Array:
        return draw(count * self.hidden_size, scale=1 / math.sqrt(3 * self.hidden_size))


class GRU(_Gated):
    """Gated recurrent units (Cho et al. 2014): gates r, z and the new value n.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
        Of inputs, ``b``, and of the state's part in n, ``bhn``.
    """

    gates = 3

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.b = self._bias(3) if bias else None
        self.bhn = self._bias(1) if bias else None

    def __call__(self, x: Array, hidden: Array | None = None) -> Array:
        """Map (..., tokens, input_size) to the states (..., tokens, hidden_size)."""
        inputs = matmul(x, self.Wx.T)
        inputs = inputs if self.b is None else inputs + self.b
        states: list[Array] = []
        for token in range(x.shape[-2]):
            hidden = self._next(inputs[..., token, :], hidden)
            states.append(hidden)
        return stack(states, axis=-2)

    def _next(self, given: Array, hidden: Array | None) -> Array:
        reset, keep, value = split(given, 3, axis=-1)
        rest = self.bhn
        if hidden is not None:
            more = split(matmul(hidden, self.Wh.T), 3, axis=-1)
            reset, keep = reset + more[0], keep + more[1]
            rest = more[2] if rest is None else more[2] + rest
        reset, keep = sigmoid(reset), sigmoid(keep)
        value = tanh(value if rest is None else value + reset * rest)
        fresh = (1 - keep) * value
        return fresh if hidden is None else fresh + keep * hidden


class LSTM(_Gated):
    """Long short-term memory (Hochreiter & Schmidhuber 1997): gates i, f, g, o.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
    """

    gates = 4

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.bias = self._bias(4) if bias else None

    def __call__(
        self, x: Array, hidden: Array | None = None, cell: Array | None = None
    ) -> tuple[Array, Array]:
        """Map (..., tokens, input_size) to states and cells, both (..., tokens, hidden_size)."""
        inputs = matmul(x, self.Wx.T)
        inputs = inputs if self.bias is None else inputs + self.bias
        states: list[Array] = []
        cells: list[Array] = []
        for token in range(x.shape[-2]):
            total = inputs[..., token, :]
            total = total if hidden is None else total + matmul(hidden, self.Wh.T)
            enter, forget, value, leave = split(total, 4, axis=-1)
            fresh = sigmoid(enter) * tanh(value)
            cell = fresh if cell is None else sigmoid(forget) * cell + fresh
            hidden = sigmoid(leave) * tanh(cell)
            states.append(hidden)
            cells.append(cell)
        return stack(states, axis=-2), stack(cells, axis=-2)
