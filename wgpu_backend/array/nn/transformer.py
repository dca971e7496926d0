"""Encoders and decoders of transformers (Vaswani et al. 2017, §3.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.nn.activations import relu
from wgpu_backend.array.nn.attention import MultiHeadAttention
from wgpu_backend.array.nn.linear import Linear
from wgpu_backend.array.nn.module import Module
from wgpu_backend.array.nn.norms import LayerNorm

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Activation = Callable[[Any], Any]


class _Layer(Module):
    """Parts with a residual and a norm each, before the part or behind the sum.

    Parameters
    ----------
    dims, num_heads : int
    mlp_dims : int or None
        None is four times `dims`.
    dropout : float
        Taken for compatibility: nothing is dropped.
    activation : callable
    norm_first : bool
        Whether norms stand before parts.
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

    def _added(self, x: Array, norm: LayerNorm, part: Callable[[Array], Array]) -> Array:
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))

    def _mlp(self, x: Array) -> Array:
        return self.linear2(self._activation(self.linear1(x)))


class TransformerEncoderLayer(_Layer):
    """Attention and an MLP; parameters as `TransformerEncoder` has them."""

    def __init__(self, dims: int, num_heads: int, *args: Any, **options: Any) -> None:
        super().__init__(dims, num_heads, *args, **options)
        self.attention = MultiHeadAttention(dims, num_heads)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """(n, tokens, dims) to the same."""
        x = self._added(x, self.ln1, lambda y: self.attention(y, y, y, mask))
        return self._added(x, self.ln2, self._mlp)


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
        """(n, tokens, dims), with (n, keys, dims) to attend to, to the first's shape."""
        x = self._added(x, self.ln1, lambda y: self.self_attention(y, y, y, x_mask))
        x = self._added(x, self.ln2, lambda y: self.cross_attention(y, memory, memory, memory_mask))
        return self._added(x, self.ln3, self._mlp)


class TransformerEncoder(Module):
    """Layers of `TransformerEncoderLayer`, and a norm.

    Parameters
    ----------
    num_layers, dims, num_heads : int
    mlp_dims : int or None
        None is four times `dims`.
    dropout : float
        Taken for compatibility: nothing is dropped.
    activation : callable
    norm_first : bool
        Whether norms stand before parts.
    checkpoint : bool
        Taken for compatibility: nothing trains.
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
        """(n, tokens, dims) to the same."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.ln(x)


class TransformerDecoder(Module):
    """Layers of `TransformerDecoderLayer`, and a norm; parameters as of `TransformerEncoder`."""

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
        """(n, tokens, dims), with (n, keys, dims) to attend to, to the first's shape."""
        for layer in self.layers:
            x = layer(x, memory, x_mask, memory_mask)
        return self.ln(x)


class Transformer(Module):
    """An encoder, and a decoder that attends to what it gives.

    Parameters
    ----------
    dims, num_heads, num_encoder_layers, num_decoder_layers : int
    mlp_dims, dropout, activation, norm_first, checkpoint
        As of `TransformerEncoder`.
    custom_encoder, custom_decoder : Module or None
        In the place of the standard ones.
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
        """(n, keys, dims) and (n, tokens, dims) to the second's shape."""
        return self.decoder(tgt, self.encoder(src, src_mask), tgt_mask, memory_mask)
