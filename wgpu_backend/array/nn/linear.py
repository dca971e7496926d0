"""Linear layers and embeddings, also of quantised weights; sums and results are float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.creation import zeros
from wgpu_backend.array.nn.layer_helpers import as_singles, draw, draw_weights, require_width
from wgpu_backend.array.nn.module import Module
from wgpu_backend.array.promotion import as_node
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.index.indexing import rows
from wgpu_backend.ops.index.taking import take_axes
from wgpu_backend.ops.linear.linear import linear_layer, mulmat
from wgpu_backend.ops.mlx_quant.products import quantised_matmul
from wgpu_backend.ops.mlx_quant.quantising import affine_quantise, dequantised_array, float_quantise
from wgpu_backend.ops.shape.shapes import reshape_node

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def multiply(weight: Node, x: Node, addend: Node | None) -> Node:
    """Return ``x @ weight.T + addend`` for any number of leading axes, f32."""
    *leading, k = x.spec.shape
    rows_of_x = reshape_node(x, (math.prod(leading), k))
    y = linear_layer(weight, rows_of_x, addend)
    return reshape_node(y, (*leading, weight.spec.shape[0]))


class Linear(Module):
    """``x @ weight.T + bias``.

    Attributes
    ----------
    weight : (output_dims, input_dims), any float type or block format
    bias : (output_dims,) or None
    """

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True) -> None:
        self.weight = draw_weights((output_dims, input_dims))
        self.bias = zeros((output_dims,)) if bias else None
        self._low_rank: list[tuple[Array, Array]] = []

    def __call__(self, x: Array) -> Array:
        """Map (..., input_dims) to (..., output_dims), float32."""
        node = require_width("Linear", as_singles("Linear", x), self.weight.shape[1])
        addend = None if self.bias is None else as_singles("Linear", self.bias)
        y = wrap(multiply(self.weight.node, node, addend))
        # Adapters (LoRA): two thin products, where a weight in a block format cannot be changed.
        for down, up in self._low_rank:
            low = multiply(down.node, node, None)
            y = y + wrap(multiply(up.node, low, None))
        return y

    def add_low_rank(self, down: Array, up: Array) -> None:
        """Add ``x @ down.T @ up.T`` to results without changing the weight.

        Parameters
        ----------
        down : (rank, input_dims)
        up : (output_dims, rank)
        """
        self._low_rank.append((down, up))

    def remove_low_rank(self) -> None:
        """Remove all that `add_low_rank` added."""
        self._low_rank.clear()


class Bilinear(Module):
    """A matrix between rows of two inputs for each output: ``x2 @ weight[i] @ x1 + bias[i]``.

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
        """Map (..., input1_dims) and (..., input2_dims) to (..., output_dims), float32."""
        outputs, rows, cols = self.weight.shape
        first = require_width("Bilinear", as_singles("Bilinear", x1), cols)
        second = require_width("Bilinear", as_singles("Bilinear", x2), rows)
        *leading, _ = first.spec.shape
        if second.spec.shape[:-1] != tuple(leading):
            raise ShapeError(f"Bilinear: inputs are {x1.shape} and {x2.shape}, need as many rows")
        # One product with all matrices, then a sum over the second rows.
        flat = reshape_node(self.weight.node, (outputs * rows, cols))
        pairs = wrap(multiply(flat, first, None)).reshape((*leading, outputs, rows))
        y = (pairs * wrap(second).reshape((*leading, 1, rows))).sum(-1)
        return y if self.bias is None else y + self.bias


class Embedding(Module):
    """Rows of a table by their ids.

    Attributes
    ----------
    weight : (num_embeddings, dims), any float type or block format
    """

    def __init__(self, num_embeddings: int, dims: int) -> None:
        self.weight = draw(num_embeddings, dims, scale=1 / math.sqrt(dims))

    def __call__(self, ids: Array) -> Array:
        """Map (...) integers to (..., dims), float32; ids outside the table give arbitrary rows."""
        from wgpu_backend.array.types import INTEGERS

        node = as_node("Embedding", ids)
        if node.spec.dtype not in INTEGERS:
            raise DTypeError(f"Embedding: ids are {node.spec.dtype}, needs integers")
        flat = convert(reshape_node(node, (node.spec.size,)), I32)
        return wrap(reshape_node(rows(self.weight.node, flat), (*ids.shape, self.weight.shape[1])))

    def as_linear(self, x: Array) -> Array:
        """Multiply by the table: logits, where output and embedding share weights."""
        node = require_width("Embedding", as_singles("Embedding", x), self.weight.shape[1])
        *leading, k = node.spec.shape
        y = mulmat(self.weight.node, reshape_node(node, (math.prod(leading), k)))
        return wrap(reshape_node(y, (*leading, self.weight.shape[0])))


M = TypeVar("M", bound=Module)
Predicate = Callable[[str, Module], "bool | dict[str, Any]"]


class _Quantised(Module):
    """A matrix in packed words with scales, and biases where its mode has them.

    Parameters
    ----------
    weight : (rows, values), f32, f16 or bf16
    mode : str
        ``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``.
    """

    def __init__(self, weight: Array, group_size: int, bits: int, mode: str) -> None:
        node = as_node(type(self).__name__, weight)
        self.group_size, self.bits, self.mode = group_size, bits, mode
        self.biases: Array | None = None
        if mode == "affine":
            packed, scales, biases = affine_quantise(node, group_size, bits)
            self.biases = wrap(biases)
        else:
            packed, scales = float_quantise(node, mode)
        self.weight, self.scales = wrap(packed), wrap(scales)

    @property
    def _cols(self) -> int:
        """Values of a row."""
        return self.weight.shape[-1] * 32 // self.bits

    def _product(self, name: str, x: Array) -> Node:
        node = require_width(name, as_singles(name, x), self._cols)
        biases = None if self.biases is None else self.biases.node
        return quantised_matmul(
            node,
            self.weight.node,
            self.scales.node,
            biases,
            True,
            self.group_size,
            self.bits,
            self.mode,
        )


class QuantizedLinear(_Quantised):
    """``x @ weight.T + bias`` with a quantised weight.

    Attributes
    ----------
    weight : (output_dims, input_dims * bits // 32), u32
    scales, biases : (output_dims, input_dims // group_size)
    bias : (output_dims,) or None
    """

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
    ) -> None:
        self._start(Linear(input_dims, output_dims, bias), group_size, bits, mode)

    def _start(self, linear: Linear, group_size: int, bits: int, mode: str) -> None:
        super().__init__(linear.weight, group_size, bits, mode)
        self.bias = linear.bias

    @classmethod
    def from_linear(
        cls, linear: Linear, group_size: int = 64, bits: int = 4, mode: str = "affine"
    ) -> QuantizedLinear:
        """Quantise the weight of another layer."""
        # Not `__init__`, which would draw weights.
        made = cls.__new__(cls)
        made._start(linear, group_size, bits, mode)
        return made

    def __call__(self, x: Array) -> Array:
        """Map (..., input_dims) to (..., output_dims), float32."""
        y = wrap(self._product("QuantizedLinear", x))
        return y if self.bias is None else y + wrap(as_singles("QuantizedLinear", self.bias))


class QuantizedEmbedding(_Quantised):
    """Rows of a quantised table by their ids.

    Attributes
    ----------
    weight : (num_embeddings, dims * bits // 32), u32
    scales, biases : (num_embeddings, dims // group_size)
    """

    def __init__(
        self,
        num_embeddings: int,
        dims: int,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
    ) -> None:
        super().__init__(Embedding(num_embeddings, dims).weight, group_size, bits, mode)

    @classmethod
    def from_embedding(
        cls, embedding: Embedding, group_size: int = 64, bits: int = 4, mode: str = "affine"
    ) -> QuantizedEmbedding:
        """Quantise the rows of another table."""
        made = cls.__new__(cls)
        _Quantised.__init__(made, embedding.weight, group_size, bits, mode)
        return made

    def __call__(self, ids: Array) -> Array:
        """Map (...) ids to (..., dims)."""
        node = convert(as_node("QuantizedEmbedding", ids), I32)
        each = reshape_node(node, (node.spec.size,))
        planes = [self.weight, self.scales, *([] if self.biases is None else [self.biases])]
        packed, scales, *biases = (take_axes(p.node, each, 0) for p in planes)
        y = dequantised_array(
            packed,
            scales,
            biases[0] if biases else None,
            self.group_size,
            self.bits,
            self.mode,
        )
        return wrap(reshape_node(y, (*node.spec.shape, self._cols)))

    def as_linear(self, x: Array) -> Array:
        """Return ``x @ table.T``: logits of tied embeddings."""
        return wrap(self._product("QuantizedEmbedding", x))


def quantize(
    model: M,
    group_size: int = 64,
    bits: int = 4,
    mode: str = "affine",
    class_predicate: Predicate | None = None,
) -> M:
    """Replace linear layers and embeddings of a model by quantised ones.

    Parameters
    ----------
    class_predicate : callable or None
        Takes the path of a layer and the layer; returns whether to quantise it, or a dictionary of
        `group_size`, `bits` and `mode`. None quantises all layers whose rows are whole groups.

    Returns
    -------
    Module
        The model itself.
    """
    changed: dict[str, Module] = {}
    for path, module in model.named_modules():
        if not isinstance(module, Linear | Embedding):
            continue
        wanted = _choose_options(class_predicate, path, module, group_size)
        options = {"group_size": group_size, "bits": bits, "mode": mode}
        if isinstance(wanted, dict):
            options |= wanted
        if wanted:
            changed[path] = _quantise_layer(module, options)
    model.update_modules(changed)
    return model


def _choose_options(
    predicate: Predicate | None, path: str, module: Linear | Embedding, group_size: int
) -> bool | dict[str, Any]:
    if predicate is None:
        return module.weight.shape[-1] % group_size == 0
    return predicate(path, module)


def _quantise_layer(module: Linear | Embedding, options: dict[str, Any]) -> Module:
    if isinstance(module, Linear):
        return QuantizedLinear.from_linear(module, **options)
    return QuantizedEmbedding.from_embedding(module, **options)
