"""The transformer of Z-Image: Cai et al. 2025, "Z-Image".

Text and image pass through a few separate blocks, then through all others as one sequence.

Latents are (1, height, width, channels); a token is a square of 2 x 2. Both sequences are padded to
multiples of 32 with learned tokens, which are attended to.
"""

from __future__ import annotations

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.errors import ShapeError
from wgpu_backend.files.huggingface.settings import Settings

from .axial_rope import Places, Table, axial_rope, grid_places
from .joint_attention import attend_rotated, split_heads
from .modulation import make_plain_norm
from .networks import Denoiser
from .original_names import Z_IMAGE

# Width of a timestep's sinusoids, of the layer between, and at most of the result.
SINUSOIDS = 256
INNER = 1024
MOST = 256
# Tokens are padded to multiples of this.
MULTIPLE = 32
PATCH = 2
# Epsilon of the norms of heads.
HEAD_EPS = 1e-5


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self, width: int, heads: int, normed: bool) -> None:
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.to_out = [nn.Linear(width, width, bias=False)]
        made = nn.RMSNorm if normed else nn.Identity
        self.norm_q, self.norm_k = (made(width // heads, HEAD_EPS) for _ in range(2))
        self._heads = heads

    def __call__(self, x: wx.Array, rope: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        q, k, v = (split_heads(p(x), self._heads) for p in (self.to_q, self.to_k, self.to_v))
        return self.to_out[0](attend_rotated(self.norm_q(q), self.norm_k(k), v, rope))


class FeedForward(nn.Module):
    """A gated feed-forward network (Shazeer 2020)."""

    def __init__(self, width: int) -> None:
        # Three matrices of 8/3 of the width are as large as two of 4 times.
        inner = int(width / 3 * 8)
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        return self.w2(nn.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward, each between two norms, scaled and gated by the timestep.

    Parameters
    ----------
    modulated : bool
        Whether the timestep scales and gates them.
    """

    def __init__(self, settings: Settings, modulated: bool) -> None:
        width, heads = _width(settings), settings.uint("n_heads", default=30)
        eps = settings.number("norm_eps", default=1e-5)
        self.attention = Attention(width, heads, settings.flag("qk_norm", default=True))
        self.feed_forward = FeedForward(width)
        self.attention_norm1, self.attention_norm2 = (nn.RMSNorm(width, eps) for _ in range(2))
        self.ffn_norm1, self.ffn_norm2 = (nn.RMSNorm(width, eps) for _ in range(2))
        self.adaLN_modulation = [nn.Linear(min(width, MOST), 4 * width)] if modulated else []

    def __call__(self, x: wx.Array, rope: wx.Array, time: wx.Array | None = None) -> wx.Array:
        """Map (n, tokens, width) to the same shape."""
        if time is None:
            x = x + self.attention_norm2(self.attention(self.attention_norm1(x), rope))
            return x + self.ffn_norm2(self.feed_forward(self.ffn_norm1(x)))
        vectors = self.adaLN_modulation[0](time)[:, None].split(4, axis=-1)
        scale, gate, feed_scale, feed_gate = vectors
        y = self.attention(self.attention_norm1(x) * (1.0 + scale), rope)
        x = x + nn.tanh(gate) * self.attention_norm2(y)
        y = self.feed_forward(self.ffn_norm1(x) * (1.0 + feed_scale))
        return x + nn.tanh(feed_gate) * self.ffn_norm2(y)


class TimeEmbedding(nn.Module):
    """Two linear layers with SiLU between them."""

    def __init__(self, width: int) -> None:
        self.mlp = [nn.Linear(SINUSOIDS, INNER), nn.SiLU(), nn.Linear(INNER, width)]

    def __call__(self, time: wx.Array) -> wx.Array:
        """Map (n,) to (n, width)."""
        y = nn.timestep_embedding(time, SINUSOIDS, True, 0)
        for part in self.mlp:
            y = part(y)
        return y


class LastLayer(nn.Module):
    """A norm that the timestep scales, and the linear layer from tokens to squares."""

    def __init__(self, width: int, outputs: int) -> None:
        self.linear = nn.Linear(width, outputs)
        self.adaLN_modulation = [nn.SiLU(), nn.Linear(min(width, MOST), width)]
        self._norm = make_plain_norm(width)

    def __call__(self, x: wx.Array, time: wx.Array) -> wx.Array:
        """Map (n, tokens, width) to (n, tokens, outputs)."""
        silu, linear = self.adaLN_modulation
        return self.linear(self._norm(x) * (1.0 + linear(silu(time))[:, None]))


@nn.published("ZImageTransformer2DModel")
class ZImageTransformer(Denoiser):
    """Z-Image, which predicts image minus noise; other networks predict noise minus image."""

    originals = Z_IMAGE

    def __init__(self, settings: Settings) -> None:
        width = _width(settings)
        kind = f"{PATCH}-1"
        for name, known in (("all_patch_size", [PATCH]), ("all_f_patch_size", [1])):
            if settings.uints(name, default=known) != known:
                raise settings.error(name, f"is {settings.value(name)}, needs {known}")
        if settings.value("siglip_feat_dim") is not None:
            raise settings.error("siglip_feat_dim", "is set; only networks without SigLIP load")
        self.channels = settings.uint("in_channels", default=16)
        self.patch = PATCH
        cols = PATCH**2 * self.channels
        self.all_x_embedder = {kind: nn.Linear(cols, width)}
        self.all_final_layer = {kind: LastLayer(width, cols)}
        refiners = settings.uint("n_refiner_layers", default=2)
        self.noise_refiner = [Block(settings, modulated=True) for _ in range(refiners)]
        self.context_refiner = [Block(settings, modulated=False) for _ in range(refiners)]
        self.t_embedder = TimeEmbedding(min(width, MOST))
        text = settings.uint("cap_feat_dim", default=2560)
        eps = settings.number("norm_eps", default=1e-5)
        self.cap_embedder = [nn.RMSNorm(text, eps), nn.Linear(text, width)]
        self.x_pad_token, self.cap_pad_token = wx.zeros((1, width)), wx.zeros((1, width))
        layers = settings.uint("n_layers", default=30)
        self.layers = [Block(settings, modulated=True) for _ in range(layers)]
        self._kind = kind
        self._widths = settings.uints("axes_dims", default=[32, 48, 48])
        self._most = settings.uints("axes_lens", default=[1024, 512, 512])
        self._theta = settings.number("rope_theta", default=256.0)
        self._scale = settings.number("t_scale", default=1000.0)

    def rope(self, height: int, width: int, text_tokens: int) -> Table:
        """Return cosines and sines of the positions of an image's tokens and a text's, padded.

        Parameters
        ----------
        height, width : int
            Height and width of the latents.
        text_tokens : int
            Number of tokens of the text.

        Raises
        ------
        ShapeError
            A position is beyond the largest one that the network supports.
        """
        places = _make_places(height // PATCH, width // PATCH, text_tokens)
        furthest = places.max(0).tolist()
        if any(place >= most for place, most in zip(furthest, self._most, strict=True)):
            raise ShapeError(
                f"z-image: positions of text, rows and columns reach {furthest}, needs less than "
                f"{self._most}"
            )
        return axial_rope(places, self._widths, self._theta)

    def __call__(self, x: wx.Array, timestep: wx.Array, text: wx.Array, rope: wx.Array) -> wx.Array:
        """Predict image minus noise.

        Parameters
        ----------
        x : (1, height, width, channels)
            Noisy latents.
        timestep : (1,)
            0 for noise to 1 for the image.
        text : (1, tokens, width)
            States of the text, without padding.
        rope : (all tokens, pairs, 2)
            Rotations of all positions.

        Returns
        -------
        (1, height, width, channels)
        """
        _, height, width, channels = x.shape
        time = self.t_embedder(timestep * self._scale)
        tokens = self.all_x_embedder[self._kind](_pack_squares(x))
        made = tokens.shape[1]
        tokens = _pad(tokens, self.x_pad_token)
        norm, linear = self.cap_embedder
        text = _pad(linear(norm(text)), self.cap_pad_token)
        count = tokens.shape[1]
        for block in self.noise_refiner:
            tokens = block(tokens, rope[:count], time)
        for block in self.context_refiner:
            text = block(text, rope[count:])
        tokens = wx.concat([tokens, text], axis=1)
        for block in self.layers:
            tokens = block(tokens, rope, time)
        rows = self.all_final_layer[self._kind](tokens[:, :made], time)
        squares = rows.reshape(1, height // PATCH, width // PATCH, PATCH, PATCH, channels)
        return wx.permute_dims(squares, (0, 1, 3, 2, 4, 5)).reshape(x.shape)


def _width(settings: Settings) -> int:
    return settings.uint("dim", default=3840)


def _pack_squares(x: wx.Array) -> wx.Array:
    """Pack latents (1, height, width, channels) into tokens (1, squares, PATCH² · channels)."""
    _, height, width, channels = x.shape
    squares = x.reshape(1, height // PATCH, PATCH, width // PATCH, PATCH, channels)
    ordered = wx.permute_dims(squares, (0, 1, 3, 2, 4, 5))
    return ordered.reshape(1, height // PATCH * (width // PATCH), PATCH**2 * channels)


def _pad(x: wx.Array, filler: wx.Array) -> wx.Array:
    """Pad tokens (1, tokens, width) to a multiple."""
    missing = -x.shape[1] % MULTIPLE
    if not missing:
        return x
    return wx.concat([x, wx.broadcast_to(filler[None], (1, missing, x.shape[2]))], axis=1)


def _make_places(rows: int, columns: int, text_tokens: int) -> Places:
    """Return the positions of all tokens; an image follows its text, padding is at the origin."""
    text = text_tokens + -text_tokens % MULTIPLE
    # The text begins at 1, so its last token is at `text`, and the image's time comes next.
    picture = grid_places((text + 1, 0, 0), (1, rows, columns))
    filled = np.zeros((-len(picture) % MULTIPLE, 3), np.int64)
    return np.concatenate([picture, filled, grid_places((1, 0, 0), (text, 1, 1))])
