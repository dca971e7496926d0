"""Attention of text and image to both, with separate weights.

Esser et al. 2024, "Scaling Rectified Flow Transformers", §4, with norms of heads (§5.3.2) and
rotary positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import wgpu_backend.array as wx
from wgpu_backend.array import nn

from .modulation import make_plain_norm, modulate

# Epsilon of the norms of heads.
EPS = 1e-6
Feed = Callable[[wx.Array], wx.Array]


class JointAttention(nn.Module):
    """Attention over the text's tokens, followed by the image's.

    Parameters
    ----------
    bias : bool
        Whether projections have biases.
    """

    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias) for _ in range(3))
        self.to_out = [nn.Linear(width, width, bias)]
        self.add_q_proj, self.add_k_proj, self.add_v_proj = (
            nn.Linear(width, width, bias) for _ in range(3)
        )
        self.to_add_out = nn.Linear(width, width, bias)
        self.norm_q, self.norm_k, self.norm_added_q, self.norm_added_k = (
            nn.RMSNorm(width // heads, EPS) for _ in range(4)
        )
        self._heads = heads

    def __call__(self, x: wx.Array, text: wx.Array, rope: wx.Array) -> tuple[wx.Array, wx.Array]:
        """Attend: image and text, each (n, tokens, width), to the same shapes.

        Parameters
        ----------
        x, text : (n, tokens, width)
            Tokens of the image, and of the text.
        rope : (tokens of text and image, pairs, 2)
            Rotations of all positions.
        """
        q = self._join_streams(
            self.norm_added_q(self._split_heads(self.add_q_proj(text))),
            self.norm_q(self._split_heads(self.to_q(x))),
        )
        k = self._join_streams(
            self.norm_added_k(self._split_heads(self.add_k_proj(text))),
            self.norm_k(self._split_heads(self.to_k(x))),
        )
        v = self._join_streams(
            self._split_heads(self.add_v_proj(text)), self._split_heads(self.to_v(x))
        )
        y = attend_rotated(q, k, v, rope)
        count = text.shape[1]
        return self.to_out[0](y[:, count:]), self.to_add_out(y[:, :count])

    def _split_heads(self, x: wx.Array) -> wx.Array:
        return split_heads(x, self._heads)

    def _join_streams(self, text: wx.Array, x: wx.Array) -> wx.Array:
        return wx.concat([text, x], axis=1)


def split_heads(x: wx.Array, heads: int) -> wx.Array:
    """Split (n, tokens, width) into (n, tokens, heads, width / heads)."""
    n, tokens, width = x.shape
    return x.reshape(n, tokens, heads, width // heads)


def attend_rotated(q: wx.Array, k: wx.Array, v: wx.Array, rope: wx.Array) -> wx.Array:
    """Attend with rotated heads: (n, tokens, heads, cols) to (n, tokens, heads * cols)."""
    q, k = (nn.rotated(part, rope, interleaved=True) for part in (q, k))
    n, tokens, heads, cols = q.shape
    return nn.attend(q, k, v).reshape(n, tokens, heads * cols)


class JointBlock(nn.Module):
    """Attention of text and image to both, and feed-forward of each, all modulated.

    Parameters
    ----------
    bias : bool
        Whether the projections of attention have biases.
    """

    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        self.attn = JointAttention(width, heads, bias)
        self._norm = make_plain_norm(width)

    def apply_both(
        self,
        streams: tuple[wx.Array, wx.Array],
        vectors: tuple[Sequence[wx.Array], Sequence[wx.Array]],
        feeds: tuple[Feed, Feed],
        rope: wx.Array,
    ) -> tuple[wx.Array, wx.Array]:
        """Map image and text, each (n, tokens, width), to the same shapes.

        Parameters
        ----------
        streams : pair of (n, tokens, width)
            Tokens of the image, and of the text.
        vectors : pair of six (n, 1, width)
            Shift, scale and gate of attention, then of feed-forward.
        feeds : pair of callable
            Feed-forward networks.
        rope : (tokens of text and image, pairs, 2)
            Rotations of all positions.
        """
        x, text = (
            modulate(self._norm(y), *own[:2]) for y, own in zip(streams, vectors, strict=True)
        )
        attended = self.attn(x, text, rope)
        x, text = map(self._feed, streams, attended, vectors, feeds)
        return x, text

    def _feed(
        self, x: wx.Array, attended: wx.Array, vectors: Sequence[wx.Array], feed: Feed
    ) -> wx.Array:
        gate, shift, scale, feed_gate = vectors[2:]
        x = x + gate * attended
        return x + feed_gate * feed(modulate(self._norm(x), shift, scale))
