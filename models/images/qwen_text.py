"""Text encoders of image models: Qwen3, and the text part of Qwen2.5-VL.

Yang et al. 2025, "Qwen3 Technical Report", §2; Bai et al. 2025, "Qwen2.5-VL Technical Report".
Pipelines read the states after one of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

from .joint_attention import split_heads

Ids = NDArray[np.int64]


class Attention(nn.Module):
    """Causal grouped-query attention.

    Parameters
    ----------
    normed : bool
        Whether queries and keys have norms, and projections no biases, as in Qwen3; otherwise the
        reverse.
    """

    def __init__(self, settings: Settings, normed: bool) -> None:
        width, heads = settings.uint("hidden_size"), settings.uint("num_attention_heads")
        self._heads = heads
        self._kv_heads = settings.uint("num_key_value_heads", default=heads)
        cols = head_cols(settings)
        self.q_proj = nn.Linear(width, heads * cols, bias=not normed)
        self.k_proj = nn.Linear(width, self._kv_heads * cols, bias=not normed)
        self.v_proj = nn.Linear(width, self._kv_heads * cols, bias=not normed)
        self.o_proj = nn.Linear(heads * cols, width, bias=False)
        eps = settings.number("rms_norm_eps", default=1e-6)
        made = nn.RMSNorm if normed else nn.Identity
        self.q_norm, self.k_norm = (made(cols, eps) for _ in range(2))

    def __call__(self, x: wx.Array, rope: wx.Array, mask: wx.Array | None) -> wx.Array:
        """Map (1, tokens, width) to the same shape."""
        q = self.q_norm(split_heads(self.q_proj(x), self._heads))
        k = self.k_norm(split_heads(self.k_proj(x), self._kv_heads))
        v = split_heads(self.v_proj(x), self._kv_heads)
        q, k = nn.rotated(q, rope), nn.rotated(k, rope)
        y = nn.attend(q, k, v, mask=mask, causal=mask is None)
        return self.o_proj(y.reshape(1, x.shape[1], q.shape[2] * q.shape[3]))


class GatedFeedForward(nn.Module):
    """A gated feed-forward network (Shazeer 2020)."""

    def __init__(self, width: int, inner: int, bias: bool = False) -> None:
        self.gate_proj = nn.Linear(width, inner, bias)
        self.up_proj = nn.Linear(width, inner, bias)
        self.down_proj = nn.Linear(inner, width, bias)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (..., width) to the same shape."""
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A pre-norm layer of attention and feed-forward with residuals."""

    def __init__(self, settings: Settings, normed: bool) -> None:
        width, eps = settings.uint("hidden_size"), settings.number("rms_norm_eps", default=1e-6)
        self.self_attn = Attention(settings, normed)
        self.mlp = GatedFeedForward(width, settings.uint("intermediate_size"))
        self.input_layernorm = nn.RMSNorm(width, eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)

    def __call__(self, x: wx.Array, rope: wx.Array, mask: wx.Array | None) -> wx.Array:
        """Map (1, tokens, width) to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), rope, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Layers(nn.Module):
    """The embeddings, the layers and the last norm.

    Parameters
    ----------
    normed : bool
        See `Attention`.
    """

    def __init__(self, settings: Settings, normed: bool) -> None:
        if settings.text("hidden_act", default="silu") != "silu":
            raise settings.error("hidden_act", f"is {settings.text('hidden_act')!r}, known is silu")
        width = settings.uint("hidden_size")
        self.embed_tokens = nn.Embedding(settings.uint("vocab_size"), width)
        count = settings.uint("num_hidden_layers")
        self.layers = [Layer(settings, normed) for _ in range(count)]
        self.norm = nn.RMSNorm(width, settings.number("rms_norm_eps", default=1e-6))
        self._cols, self._theta = head_cols(settings), _theta(settings)
        self._sections = _count_sections(settings)

    def __call__(
        self, x: wx.Array, places: Ids, mask: NDArray[np.int64] | None = None
    ) -> list[wx.Array]:
        """Return the states before the first layer and after each; the last ones are normalised.

        Parameters
        ----------
        x : (1, tokens, width)
            Embedded tokens.
        places : (tokens,) or (tokens, 3), int
            Position of each token; three for time, row and column.
        mask : (tokens,), 1 for a token and 0 for padding, or None
            Padding follows the tokens and attends to them; no token attends to padding.
        """
        rope = wx.array(self._rope(places))
        seen = None if mask is None else wx.array(_find_visible(mask))
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1], rope, seen))
        return [*states[:-1], self.norm(states[-1])]

    def _rope(self, places: Ids) -> NDArray[np.float32]:
        """Return cosines and sines (tokens, pairs, 2); each pair has one of the three positions."""
        pairs = np.arange(self._cols // 2)
        # In f32, as in the code that trained the weights.
        exponents = (2 * pairs).astype(np.float32) / np.float32(self._cols)
        frequencies = np.float32(1) / np.float32(self._theta) ** exponents
        if places.ndim == 1:
            angles = places[:, None].astype(np.float32) * frequencies
        else:
            # Sections may be listed for both halves of a head, so that the three axes repeat.
            axis = np.repeat(np.arange(len(self._sections)) % 3, self._sections)
            angles = places[:, axis].astype(np.float32) * frequencies
        return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def _find_visible(mask: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which keys each query sees: (tokens, tokens)."""
    # Padding is at the end, where it may see tokens: its states are not read.
    return np.tri(len(mask), dtype=np.bool_) & (mask > 0)


def head_cols(settings: Settings) -> int:
    """Return the size of a head."""
    width, heads = settings.uint("hidden_size"), settings.uint("num_attention_heads", "num_heads")
    return settings.uint("head_dim", default=width // max(heads, 1))


def _theta(settings: Settings) -> float:
    within = settings.section("rope_parameters")
    kind = within.text("rope_type", default="default")
    if kind != "default":
        raise within.error("rope_type", f"is {kind!r}, known is 'default'")
    return within.number("rope_theta", default=settings.number("rope_theta", default=1e6))


def _count_sections(settings: Settings) -> list[int]:
    """Return the number of pairs that each of the three positions rotates, in order."""
    older = settings.section("rope_scaling").uints("mrope_section", default=[16, 24, 24])
    found = settings.section("rope_parameters").uints("mrope_section", default=older)
    # Qwen3 has no sections: one position rotates all pairs.
    return found if sum(found) == head_cols(settings) // 2 else [head_cols(settings) // 2]


@nn.published("Qwen3ForCausalLM", "Qwen3Model")
class Qwen3Encoder(nn.Module):
    """Qwen3 without its output matrix.

    Parameters
    ----------
    settings : Settings
        Settings of config.json.
    """

    ignored = (r"lm_head\.weight",)
    renamed = ((r"^(layers\.|norm\.|embed_tokens\.)", r"model.\1"),)

    def __init__(self, settings: Settings) -> None:
        self.model = Layers(settings, normed=True)

    def __call__(
        self, ids: Sequence[int] | Ids, mask: NDArray[np.int64] | None = None
    ) -> list[wx.Array]:
        """Return the states of a text, (1, tokens, width) each; see `Layers`.

        Parameters
        ----------
        ids : (tokens,), int
            Tokens.
        mask : (tokens,), or None
            1 for a token and 0 for padding.
        """
        x = self.model.embed_tokens(wx.array(np.asarray(ids, np.int32)))
        return self.model(x[None], np.arange(len(ids)), mask)
