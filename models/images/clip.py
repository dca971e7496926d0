"""CLIP's text encoder: GPT-2's layers without an output matrix.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision", §2.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings


@dataclass(frozen=True, slots=True)
class Encoded:
    """The states of encoded texts.

    Parameters
    ----------
    states : tuple of (texts, tokens, width)
        States before the first layer and after each layer.
    last : (texts, tokens, width)
        The last states after the final norm.
    pooled : (texts, width)
        The state of `last` at the end of each text, projected if there is a projection.
    """

    states: tuple[wx.Array, ...]
    last: wx.Array
    pooled: wx.Array


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        self._heads = heads

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.out_proj(nn.attend(q, k, v, heads=self._heads, causal=True))


class MLP(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)
        self._activation = nn.activation(activation)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        return self.fc2(self._activation(self.fc1(x)))


class Layer(nn.Module):
    """A pre-norm layer of attention and feed-forward with residuals."""

    def __init__(self, settings: Settings) -> None:
        width = settings.uint("hidden_size")
        eps = settings.number("layer_norm_eps", default=1e-5)
        self.layer_norm1 = nn.LayerNorm(width, eps)
        self.self_attn = Attention(width, settings.uint("num_attention_heads"))
        self.layer_norm2 = nn.LayerNorm(width, eps)
        inner = settings.uint("intermediate_size")
        # The default of transformers, with which OpenAI's models were trained.
        self.mlp = MLP(width, inner, settings.text("hidden_act", default="quick_gelu"))

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Embeddings(nn.Module):
    """The embeddings of tokens and positions."""

    def __init__(self, settings: Settings) -> None:
        width = settings.uint("hidden_size")
        self.token_embedding = nn.Embedding(settings.uint("vocab_size"), width)
        places = settings.uint("max_position_embeddings", default=77)
        self.position_embedding = nn.Embedding(places, width)

    def __call__(self, ids: wx.Array) -> wx.Array:
        """Embed ids (n, tokens): (n, tokens, width)."""
        return self.token_embedding(ids) + self.position_embedding(wx.arange(ids.shape[1]))


class Encoder(nn.Module):
    """The sequence of layers."""

    def __init__(self, settings: Settings) -> None:
        self.layers = [Layer(settings) for _ in range(settings.uint("num_hidden_layers"))]


class TextModel(nn.Module):
    """The embeddings, the layers and the last norm."""

    def __init__(self, settings: Settings) -> None:
        self.embeddings = Embeddings(settings)
        self.encoder = Encoder(settings)
        eps = settings.number("layer_norm_eps", default=1e-5)
        self.final_layer_norm = nn.LayerNorm(settings.uint("hidden_size"), eps)


@nn.published("CLIPTextModel")
class CLIPText(nn.Module):
    """CLIP's text encoder.

    Parameters
    ----------
    settings : Settings
        Settings of config.json.
    """

    ignored = (r"(text_model\.)?embeddings\.position_ids",)

    def __init__(self, settings: Settings) -> None:
        self.text_model = TextModel(settings)
        self.text_projection: nn.Linear | None = None
        self._end = settings.uint("eos_token_id", default=2)

    def __call__(self, ids: NDArray[np.int64]) -> Encoded:
        """Encode texts.

        Parameters
        ----------
        ids : (texts, tokens), int
        """
        model = self.text_model
        states = [model.embeddings(wx.array(ids.astype(np.int32)))]
        for layer in model.encoder.layers:
            states.append(layer(states[-1]))
        last = model.final_layer_norm(states[-1])
        ends = wx.concat([last[i : i + 1, end] for i, end in enumerate(self._ends(ids))])
        pooled = ends if self.text_projection is None else self.text_projection(ends)
        return Encoded(tuple(states), last, pooled)

    def _ends(self, ids: NDArray[np.int64]) -> list[int]:
        """Return the position in each text of the first end token."""
        # OpenAI's configurations say 2, which is wrong: their end token is the largest id.
        is_end = ids == (ids.max(1, keepdims=True) if self._end == 2 else self._end)
        return is_end.argmax(1).tolist()


@nn.published("CLIPTextModelWithProjection")
class CLIPTextProjected(CLIPText):
    """CLIP's text encoder with a projection of the pooled state."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        width, projected = settings.uint("hidden_size"), settings.uint("projection_dim")
        self.text_projection = nn.Linear(width, projected, bias=False)
