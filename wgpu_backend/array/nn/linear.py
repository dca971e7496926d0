"""Linear layers and embeddings; products sum in float32 and give float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wgpu_backend.array.conversion import convert
from wgpu_backend.array.core import wrap
from wgpu_backend.array.creation import zeros
from wgpu_backend.array.lifting import as_node
from wgpu_backend.array.nn.calls import as_singles, require_width
from wgpu_backend.array.nn.module import Module
from wgpu_backend.array.nn.starting import draw, draw_weights
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.index.indexing import rows
from wgpu_backend.ops.linear.linear import linear_layer, mulmat
from wgpu_backend.ops.shape.shapes import reshape_node

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def multiply(weight: Node, x: Node, addend: Node | None) -> Node:
    """``x @ weight.T + addend`` for any number of leading axes, f32."""
    *leading, k = x.spec.shape
    rows_of_x = reshape_node(x, (math.prod(leading), k))
    y = linear_layer(weight, rows_of_x, addend)
    return reshape_node(y, (*leading, weight.spec.shape[0]))


class Linear(Module):
    """``x @ weight.T + bias``.

    Parameters
    ----------
    input_dims, output_dims : int
    bias : bool
        Whether there is one.

    Attributes
    ----------
    weight : (output_dims, input_dims), any float type or block format
    bias : (output_dims,) or None
    """

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True) -> None:
        self.weight = draw_weights((output_dims, input_dims))
        self.bias = zeros((output_dims,)) if bias else None
        self._added: list[tuple[Array, Array]] = []

    def __call__(self, x: Array) -> Array:
        """(..., input_dims) to (..., output_dims), float32."""
        node = require_width("Linear", as_singles("Linear", x), self.weight.shape[1])
        addend = None if self.bias is None else as_singles("Linear", self.bias)
        y = wrap(multiply(self.weight.node, node, addend))
        for down, up in self._added:
            low = multiply(down.node, node, None)
            y = y + wrap(multiply(up.node, low, None))
        return y

    def add_low_rank(self, down: Array, up: Array) -> None:
        """Add ``x @ down.T @ up.T`` to results, where the weight itself cannot be changed.

        Parameters
        ----------
        down : (rank, input_dims)
        up : (output_dims, rank)
        """
        self._added.append((down, up))

    def remove_low_rank(self) -> None:
        """Leave out again what `add_low_rank` added."""
        self._added.clear()


class Bilinear(Module):
    """For each output a matrix between rows of two inputs: ``x2 @ weight[i] @ x1 + bias[i]``.

    Parameters
    ----------
    input1_dims, input2_dims, output_dims : int
    bias : bool
        Whether there is one.

    Attributes
    ----------
    weight : (output_dims, input2_dims, input1_dims), any float type
    bias : (output_dims,) or None
    """

    def __init__(
        self, input1_dims: int, input2_dims: int, output_dims: int, bias: bool = True
    ) -> None:
        scale = 1 / math.sqrt(max(input1_dims, 1))
        self.weight = draw(output_dims, input2_dims, input1_dims, scale=scale)
        self.bias = zeros((output_dims,)) if bias else None

    def __call__(self, x1: Array, x2: Array) -> Array:
        """(..., input1_dims) and (..., input2_dims) to (..., output_dims), float32."""
        outputs, rows, cols = self.weight.shape
        first = require_width("Bilinear", as_singles("Bilinear", x1), cols)
        second = require_width("Bilinear", as_singles("Bilinear", x2), rows)
        *leading, _ = first.spec.shape
        if second.spec.shape[:-1] != tuple(leading):
            raise ShapeError(f"Bilinear: inputs are {x1.shape} and {x2.shape}, need as many rows")
        flat = reshape_node(self.weight.node, (outputs * rows, cols))
        pairs = wrap(multiply(flat, first, None)).reshape((*leading, outputs, rows))
        y = (pairs * wrap(second).reshape((*leading, 1, rows))).sum(-1)
        return y if self.bias is None else y + self.bias


class Embedding(Module):
    """Rows of a table by their numbers.

    Parameters
    ----------
    num_embeddings, dims : int

    Attributes
    ----------
    weight : (num_embeddings, dims), any float type or block format
    """

    def __init__(self, num_embeddings: int, dims: int) -> None:
        self.weight = draw(num_embeddings, dims, scale=1 / math.sqrt(dims))

    def __call__(self, ids: Array) -> Array:
        """(...) integers to (..., dims), float32; numbers outside the table give anything."""
        from wgpu_backend.array.types import INTEGERS

        node = as_node("Embedding", ids)
        if node.spec.dtype not in INTEGERS:
            raise DTypeError(f"Embedding: ids are {node.spec.dtype}, needs integers")
        flat = convert(reshape_node(node, (node.spec.size,)), I32)
        return wrap(reshape_node(rows(self.weight.node, flat), (*ids.shape, self.weight.shape[1])))

    def as_linear(self, x: Array) -> Array:
        """Product with the table: logits, where output and embedding share weights."""
        node = require_width("Embedding", as_singles("Embedding", x), self.weight.shape[1])
        *leading, k = node.spec.shape
        y = mulmat(self.weight.node, reshape_node(node, (math.prod(leading), k)))
        return wrap(reshape_node(y, (*leading, self.weight.shape[0])))
