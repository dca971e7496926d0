"""Layers over sequences: attention, positions of tokens, transformers and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wgpu_backend.array.base import wrap
from wgpu_backend.array.creation import asarray
from wgpu_backend.array.elementwise import cos, sigmoid, sin, tanh
from wgpu_backend.array.manipulation import concat, expand_dims, split, stack
from wgpu_backend.array.nn.activations import relu
from wgpu_backend.array.nn.layer_helpers import as_floats, draw
from wgpu_backend.array.nn.linear import Linear
from wgpu_backend.array.nn.module import Module
from wgpu_backend.array.nn.norms import LayerNorm
from wgpu_backend.array.products import matmul
from wgpu_backend.array.promotion import as_node
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.attention.dot_product import scaled_dot_product_attention
from wgpu_backend.ops.attention.position import rope
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import permute

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    mask: Array | None = None,
    causal: bool = False,
    heads: int | None = None,
) -> Array:
    """Compute attention of heads over keys and values, tokens before heads.

    Parameters
    ----------
    q : (n, tokens, heads, cols), or (n, tokens, heads * cols) with `heads`
    k, v : (n, keys, kv_heads, cols), or with joined heads as `q`; `kv_heads` divides `heads`
    scale : float or None
        Factor of scores; None is one over the square root of `cols`.
    mask : array that broadcasts to (n, heads, tokens, keys), or None
        Floats are added to scores; bools are true for keys that are seen.
    causal : bool
        A token does not see later keys.
    heads : int or None
        Number of heads that are joined in the last axis of all three; None: they are not.

    Returns
    -------
    (n, tokens, heads, cols), or joined where the operands are; float32.
    """
    parts = [q, k, v] if heads is None else [_apart(x, heads) for x in (q, k, v)]
    nodes = [_neighbours(as_floats("attend", x)) for x in parts]
    # `scale` of 0 is a value, so None alone means the default.
    cols = nodes[0].spec.shape[-1]
    y = scaled_dot_product_attention(
        *nodes,
        mask=None if mask is None else as_node("attend", mask),
        scale=1 / math.sqrt(cols) if scale is None else scale,
        mask_mode="causal" if causal else None,
    )
    shape = y.spec.shape
    return wrap(y if heads is None else reshape_node(y, (*shape[:2], shape[2] * shape[3])))


def _apart(x: Array, heads: int) -> Array:
    if x.shape[-1] % heads:
        raise ShapeError(f"attend: rows of {x.shape[-1]} values, not a multiple of {heads} heads")
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def _neighbours(x: Node) -> Node:
    # The kernel reads rows as vectors, so their values must be neighbours.
    return x if x.spec.strides[-1] == 1 or x.spec.shape[-1] == 1 else contiguous(x)


class MultiHeadAttention(Module):
    """Attention with projections (Vaswani et al. 2017, §3.2.2).

    Parameters
    ----------
    dims : int
        Width of queries, and of results without `value_output_dims`.
    query_input_dims, key_input_dims, value_input_dims, value_dims, value_output_dims : int or None
        None is `dims`, or for values' inputs the keys'.
    bias : bool
        Add one in all four projections.
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        query_input_dims: int | None = None,
        key_input_dims: int | None = None,
        value_input_dims: int | None = None,
        value_dims: int | None = None,
        value_output_dims: int | None = None,
        bias: bool = False,
    ) -> None:
        if dims % num_heads:
            raise ShapeError(
                f"MultiHeadAttention: {dims} dims, not a multiple of {num_heads} heads"
            )
        keys, inner = key_input_dims or dims, value_dims or dims
        self.query_proj = Linear(query_input_dims or dims, dims, bias)
        self.key_proj = Linear(keys, dims, bias)
        self.value_proj = Linear(value_input_dims or keys, inner, bias)
        self.out_proj = Linear(inner, value_output_dims or dims, bias)
        self.num_heads = num_heads

    def __call__(
        self, queries: Array, keys: Array, values: Array, mask: Array | None = None
    ) -> Array:
        """Map (n, tokens, dims), (n, keys, dims) twice, to (n, tokens, value_output_dims)."""
        q, k = self.query_proj(queries), self.key_proj(keys)
        y = attend(q, k, self.value_proj(values), mask=mask, heads=self.num_heads)
        return self.out_proj(y)

    @staticmethod
    def create_additive_causal_mask(length: int, dtype: Any = F32) -> Array:
        """Return (length, length): 0 where a token sees a key, -1e9 elsewhere."""
        from wgpu_backend.array.arrays import Array

        hidden = np.triu(np.full((length, length), -1e9, np.float32), 1)
        return Array(hidden, dtype)


class RoPE(Module):
    """Rotary positions (Su et al. 2021, eq. 34) of the last axis.

    Parameters
    ----------
    dims : int
        Values that are rotated; others are kept.
    traditional : bool
        Pairs are neighbours; else halves.
    base : float
        Of the frequencies.
    scale : float
        Of positions.
    """

    def __init__(
        self, dims: int, traditional: bool = False, base: float = 10000, scale: float = 1.0
    ) -> None:
        self._dims, self._interleaved = dims, traditional
        # In float64: errors of a frequency are multiplied by the position.
        self._frequencies = scale * base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)

    def __call__(self, x: Array, offset: int = 0) -> Array:
        """Map (..., tokens, cols) to the same, float32; `offset` is the first token's position."""
        from wgpu_backend.array.arrays import Array

        # On the host, as the position is a number of Python.
        angles = np.outer(offset + np.arange(x.shape[-2]), self._frequencies)
        table = Array(np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32))
        return rotated_heads_first(x, table, interleaved=self._interleaved)


def rotated_heads_first(x: Array, table: Array, *, interleaved: bool) -> Array:
    """Rotate (..., tokens, cols) by a table (tokens, pairs, 2) of cosines and sines."""
    *leading, tokens, cols = x.shape
    heads = math.prod(leading)
    # The kernel has tokens before heads; leading axes count as heads, as all share positions.
    three = reshape_node(as_floats("rope", x), (heads, tokens, cols))
    y = rope(permute(three, 1, 0, 2), as_node("rope", table), interleaved=interleaved)
    return wrap(reshape_node(contiguous(permute(y, 1, 0, 2)), x.shape))


def rotated(x: Array, table: Array, *, interleaved: bool = False) -> Array:
    """Rotate (n, tokens, heads, cols) by a table (tokens, pairs, 2) of cosines and sines."""
    n, tokens, heads, cols = x.shape
    node = as_floats("rope", x)
    # The kernel takes a row of the table for each token: sequences, which share the table, are
    # rotated one by one.
    parts = [reshape_node(_row(node, i), (tokens, heads, cols)) for i in range(n)]
    rows = [rope(p, as_node("rope", table), interleaved=interleaved) for p in parts]
    from wgpu_backend.array.manipulation import stack

    if n == 1:
        return wrap(reshape_node(rows[0], x.shape))
    return stack([wrap(row) for row in rows])


def _row(x: Node, index: int) -> Node:
    from wgpu_backend.graph.spec import slice_axis
    from wgpu_backend.ops.shape.views import make_view

    return make_view(x, slice_axis(x.spec, 0, index, index + 1))


class SinusoidalPositionalEncoding(Module):
    """Positions as sines and cosines (Vaswani et al. 2017, §3.5).

    Parameters
    ----------
    dims : int
        Values of a position, an even number.
    min_freq, max_freq : float
        Radians per position of the slowest and of the fastest wave.
    scale : float or None
        Factor of results; None is ``sqrt(2 / dims)``.
    cos_first : bool
        Put cosines before sines.
    full_turns : bool
        Frequencies are in rotations per position, not in radians.
    """

    def __init__(
        self,
        dims: int,
        min_freq: float = 0.0001,
        max_freq: float = 1,
        scale: float | None = None,
        cos_first: bool = False,
        full_turns: bool = False,
    ) -> None:
        if dims < 2 or dims % 2:
            raise OptionError(
                f"SinusoidalPositionalEncoding: {dims} dims, needs an even number, 2 or more"
            )
        waves = np.geomspace(max_freq, min_freq, dims // 2) if dims > 2 else np.array([max_freq])
        self._frequencies = (waves * (2 * math.pi if full_turns else 1)).astype(np.float32)
        self.scale = math.sqrt(2 / dims) if scale is None else scale
        self.cos_first = cos_first

    def __call__(self, x: Array) -> Array:
        """Map (...) positions to (..., dims)."""
        angles = expand_dims(x, -1) * asarray(self._frequencies, device=x.session)
        waves = [cos(angles), sin(angles)] if self.cos_first else [sin(angles), cos(angles)]
        return concat(waves, axis=-1) * self.scale


class ALiBi(Module):
    """A bias of scores: minus the distance of tokens times a slope (Press et al. 2022)."""

    @staticmethod
    def create_alibi_slope(num_heads: int, dtype: Any = F32) -> Array:
        """Return slopes (heads, 1, 1): powers of two from 2^(-8 / heads) on."""
        whole = 2 ** int(math.log2(num_heads))
        slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
        # Heads beyond a power of two take every other slope of twice as many.
        slopes += [2 ** (-4 * (2 * i + 1) / whole) for i in range(num_heads - whole)]
        return asarray(np.array(slopes, np.float32).reshape(-1, 1, 1), dtype)

    @staticmethod
    def create_alibi_matrix(
        q_sequence_length: int,
        k_sequence_length: int,
        num_heads: int,
        offset: int = 0,
        dtype: Any = F32,
    ) -> Array:
        """Return biases (1, heads, queries, keys); queries begin at `offset`."""
        queries = np.arange(offset, q_sequence_length).reshape(-1, 1)
        far = -np.abs(queries - np.arange(k_sequence_length)).astype(np.float32)
        return (asarray(far[None, None]) * ALiBi.create_alibi_slope(num_heads)).astype(dtype)

    def __call__(
        self, attention_scores: Array, offset: int = 0, mask: Array | None = None
    ) -> Array:
        """Map (n, heads, queries, keys) to the same, with a mask added where there is one."""
        queries, keys = attention_scores.shape[-2:]
        bias = self.create_alibi_matrix(
            queries + offset, keys, attention_scores.shape[1], offset, attention_scores.dtype
        ).to_device(attention_scores.session)
        return attention_scores + (bias if mask is None else bias + mask)


Activation = Callable[[Any], Any]


class _Layer(Module):
    """A base class: parts with a residual and a norm each, before the part or after the sum.

    Parameters
    ----------
    mlp_dims : int or None
        None is four times `dims`.
    dropout : float
        Ignored: nothing is dropped without training.
    norm_first : bool
        Apply norms before parts, not after sums.
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        norm_first: bool = True,
    ) -> None:
        self.ln1, self.ln2 = LayerNorm(dims), LayerNorm(dims)
        self.linear1 = Linear(dims, mlp_dims or 4 * dims)
        self.linear2 = Linear(mlp_dims or 4 * dims, dims)
        self._activation, self.norm_first = activation, norm_first

    def _add(self, x: Array, norm: LayerNorm, part: Callable[[Array], Array]) -> Array:
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))

    def _mlp(self, x: Array) -> Array:
        return self.linear2(self._activation(self.linear1(x)))


class TransformerEncoderLayer(_Layer):
    """Attention and an MLP; parameters as `TransformerEncoder` has them."""

    def __init__(self, dims: int, num_heads: int, *args: Any, **options: Any) -> None:
        super().__init__(dims, num_heads, *args, **options)
        self.attention = MultiHeadAttention(dims, num_heads)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Map (n, tokens, dims) to the same."""
        x = self._add(x, self.ln1, lambda y: self.attention(y, y, y, mask))
        return self._add(x, self.ln2, self._mlp)


class TransformerDecoderLayer(_Layer):
    """Attention to itself, to a memory, and an MLP; parameters as `TransformerDecoder` has them."""

    def __init__(self, dims: int, num_heads: int, *args: Any, **options: Any) -> None:
        super().__init__(dims, num_heads, *args, **options)
        self.self_attention = MultiHeadAttention(dims, num_heads)
        self.cross_attention = MultiHeadAttention(dims, num_heads)
        self.ln3 = LayerNorm(dims)

    def __call__(
        self,
        x: Array,
        memory: Array,
        x_mask: Array | None = None,
        memory_mask: Array | None = None,
    ) -> Array:
        """Map (n, tokens, dims) to the same shape, attending to a memory (n, keys, dims)."""
        x = self._add(x, self.ln1, lambda y: self.self_attention(y, y, y, x_mask))
        x = self._add(x, self.ln2, lambda y: self.cross_attention(y, memory, memory, memory_mask))
        return self._add(x, self.ln3, self._mlp)


class TransformerEncoder(Module):
    """A stack of `TransformerEncoderLayer`, and a norm.

    Parameters
    ----------
    mlp_dims : int or None
        None is four times `dims`.
    dropout : float
        Ignored: nothing is dropped without training.
    norm_first : bool
        Apply norms before parts, not after sums.
    checkpoint : bool
        Ignored: nothing trains.
    """

    def __init__(
        self,
        num_layers: int,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        options = (dims, num_heads, mlp_dims, dropout, activation, norm_first)
        self.layers = [TransformerEncoderLayer(*options) for _ in range(num_layers)]
        self.ln = LayerNorm(dims)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Map (n, tokens, dims) to the same."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.ln(x)


class TransformerDecoder(Module):
    """A stack of `TransformerDecoderLayer`, and a norm; parameters as of `TransformerEncoder`."""

    def __init__(
        self,
        num_layers: int,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        options = (dims, num_heads, mlp_dims, dropout, activation, norm_first)
        self.layers = [TransformerDecoderLayer(*options) for _ in range(num_layers)]
        self.ln = LayerNorm(dims)

    def __call__(
        self,
        x: Array,
        memory: Array,
        x_mask: Array | None = None,
        memory_mask: Array | None = None,
    ) -> Array:
        """Map (n, tokens, dims) to the same shape, attending to a memory (n, keys, dims)."""
        for layer in self.layers:
            x = layer(x, memory, x_mask, memory_mask)
        return self.ln(x)


class Transformer(Module):
    """An encoder, and a decoder that attends to its output.

    Parameters
    ----------
    mlp_dims, dropout, activation, norm_first, checkpoint
        As of `TransformerEncoder`.
    custom_encoder, custom_decoder : Module or None
        Used instead of the standard ones.
    """

    def __init__(
        self,
        dims: int = 512,
        num_heads: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        options = (dims, num_heads, mlp_dims, dropout, activation, norm_first)
        self.encoder: Any = custom_encoder
        self.decoder: Any = custom_decoder
        if custom_encoder is None:
            self.encoder = TransformerEncoder(num_encoder_layers, *options)
        if custom_decoder is None:
            self.decoder = TransformerDecoder(num_decoder_layers, *options)

    def __call__(
        self,
        src: Array,
        tgt: Array,
        src_mask: Array | None = None,
        tgt_mask: Array | None = None,
        memory_mask: Array | None = None,
    ) -> Array:
        """Map (n, keys, dims) and (n, tokens, dims) to the second's shape."""
        return self.decoder(tgt, self.encoder(src, src_mask), tgt_mask, memory_mask)


def _rows(rows: int, cols: int) -> Array:
    return draw(rows, cols, scale=1 / math.sqrt(3 * cols))


class RNN(Module):
    """``h = tanh(Wxh x + Whh h + bias)`` for each token (Elman 1990).

    Parameters
    ----------
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
    """A base class: the weights of several gates, joined."""

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
    """Long short-term memory (Hochreiter & Schmidhuber 1997): gates i, f, g, o."""

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
