"""T5's encoder, also of version 1.1, whose feed-forward networks are gated.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning", §2.1; Shazeer 2020, "GLU Variants
Improve Transformer".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings


class Attention(nn.Module):
    """Attention without biases and scale, with a learned bias of scores by distance."""

    def __init__(self, settings: Settings, has_bias: bool) -> None:
        width, heads = settings.uint("d_model"), settings.uint("num_heads")
        inner = heads * settings.uint("d_kv")
        self.q = nn.Linear(width, inner, bias=False)
        self.k = nn.Linear(width, inner, bias=False)
        self.v = nn.Linear(width, inner, bias=False)
        self.o = nn.Linear(inner, width, bias=False)
        buckets = settings.uint("relative_attention_num_buckets", default=32)
        self.relative_attention_bias = nn.Embedding(buckets, heads) if has_bias else None
        self._heads = heads

    def __call__(self, x: wx.Array, bias: wx.Array) -> wx.Array:
        """Map (n, tokens, width) and (1, heads, tokens, tokens) to (n, tokens, width)."""
        # T5's training scales the initial weights of queries instead of the scores.
        y = nn.attend(self.q(x), self.k(x), self.v(x), scale=1.0, mask=bias, heads=self._heads)
        return self.o(y)


class AttentionLayer(nn.Module):
    """Attention after a norm, plus the residual."""

    def __init__(self, settings: Settings, has_bias: bool) -> None:
        self.SelfAttention = Attention(settings, has_bias)
        self.layer_norm = _norm(settings)

    def __call__(self, x: wx.Array, bias: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        return x + self.SelfAttention(self.layer_norm(x), bias)


class Gated(nn.Module):
    """A gated feed-forward network."""

    def __init__(self, settings: Settings) -> None:
        width, inner = settings.uint("d_model"), settings.uint("d_ff")
        kind = settings.text("feed_forward_proj", default="relu").removeprefix("gated-")
        self.wi_0 = nn.Linear(width, inner, bias=False)
        self.wi_1 = nn.Linear(width, inner, bias=False)
        self.wo = nn.Linear(inner, width, bias=False)
        # Files of version 1.1 name gelu, and it was trained with the approximation by tanh.
        self._activation = nn.activation("gelu_new" if kind == "gelu" else kind)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        return self.wo(self._activation(self.wi_0(x)) * self.wi_1(x))


class Plain(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, settings: Settings) -> None:
        width, inner = settings.uint("d_model"), settings.uint("d_ff")
        self.wi = nn.Linear(width, inner, bias=False)
        self.wo = nn.Linear(inner, width, bias=False)
        self._activation = nn.activation(settings.text("feed_forward_proj", default="relu"))

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        return self.wo(self._activation(self.wi(x)))


class FeedForwardLayer(nn.Module):
    """Feed-forward after a norm, plus the residual."""

    def __init__(self, settings: Settings) -> None:
        gated = settings.text("feed_forward_proj", default="relu").startswith("gated-")
        self.DenseReluDense = Gated(settings) if gated else Plain(settings)
        self.layer_norm = _norm(settings)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        return x + self.DenseReluDense(self.layer_norm(x))


class Block(nn.Module):
    """A layer of attention, then feed-forward."""

    def __init__(self, settings: Settings, has_bias: bool) -> None:
        self.layer = (AttentionLayer(settings, has_bias), FeedForwardLayer(settings))

    def __call__(self, x: wx.Array, bias: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        attention, feed_forward = self.layer
        return feed_forward(attention(x, bias))


class Encoder(nn.Module):
    """The sequence of blocks, of which the first has the biases for all."""

    def __init__(self, settings: Settings) -> None:
        self.block = [Block(settings, i == 0) for i in range(settings.uint("num_layers"))]
        self.final_layer_norm = _norm(settings)


@nn.published("T5EncoderModel")
class T5Encoder(nn.Module):
    """T5's encoder.

    Parameters
    ----------
    settings : Settings
        Settings of config.json.
    """

    # The first is another name of `shared`; only a decoder needs the others.
    ignored = (r"encoder\.embed_tokens\.weight", r"decoder\..*", r"lm_head\.weight")

    def __init__(self, settings: Settings) -> None:
        self.shared = nn.Embedding(settings.uint("vocab_size"), settings.uint("d_model"))
        self.encoder = Encoder(settings)
        self._buckets = settings.uint("relative_attention_num_buckets", default=32)
        self._far = settings.uint("relative_attention_max_distance", default=128)

    def __call__(self, ids: NDArray[np.int64]) -> wx.Array:
        """Encode texts; padding is attended to as well, as in diffusers' pipelines.

        Parameters
        ----------
        ids : (texts, tokens), int
            Tokens.

        Returns
        -------
        (texts, tokens, width)
        """
        x = self.shared(wx.array(ids.astype(np.int32)))
        bias = self._bias(ids.shape[1])
        for block in self.encoder.block:
            x = block(x, bias)
        return self.encoder.final_layer_norm(x)

    def _bias(self, tokens: int) -> wx.Array:
        """Return the bias of scores, (1, heads, tokens, tokens)."""
        places = np.arange(tokens)
        numbers = buckets(places[None] - places[:, None], self._buckets, self._far)
        table = self.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
        assert table is not None
        return wx.permute_dims(table(wx.array(numbers.astype(np.int32))), (2, 0, 1))[None]


def buckets(distances: NDArray[np.int64], count: int, far: int) -> NDArray[np.int64]:
    """Return the bucket number of each distance: half of the buckets for each direction.

    Near distances have a bucket each, others share them by their logarithm up to `far`.
    """
    half = count // 2
    exact = half // 2
    steps = np.abs(distances)
    # In f32, as in training: borders between buckets are affected by its rounding.
    scaled = np.log(np.maximum(steps, 1).astype(np.float32) / np.float32(exact))
    scaled = scaled / np.float32(np.log(far / exact)) * np.float32(half - exact)
    shared = np.minimum(exact + scaled.astype(np.int64), half - 1)
    return np.where(distances > 0, half, 0) + np.where(steps < exact, steps, shared)


def _norm(settings: Settings) -> nn.RMSNorm:
    eps = settings.number("layer_norm_epsilon", default=1e-6)
    return nn.RMSNorm(settings.uint("d_model"), eps)
