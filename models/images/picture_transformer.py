"""The network of a small picture model, trained by `examples/train_picture_model`.

Words and patches of a noisy picture attend to one another; convolutions then draw the edges. What
comes out is the picture without noise (Li & He 2025, "Back to Basics: Let Denoising Generative
Models Denoise"). One table of shifts, scales and gates of the time serves all blocks, each with an
offset of its own (Chen et al. 2023, "PixArt-α", §2.3, adaLN-single).
"""

from __future__ import annotations

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.folders.settings import Settings

EPS = 1e-6  # of norms


class Block(nn.Module):
    """Attention among words and patches, then a gated network, both under the time's control."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.offset = wx.zeros((6, width))
        self._norm, self._head_norm = _norm(width), _norm(width // heads)
        self._heads = heads

    def __call__(self, x: wx.Array, control: wx.Array) -> wx.Array:
        """(n, tokens, width) and (n, 6, width) to (n, tokens, width)."""
        shift, scale, gate, shift2, scale2, gate2 = (control + self.offset).split(6, axis=1)
        x = x + gate * self._attended(self._norm(x) * (1.0 + scale) + shift)
        inner, up = self.gate_up(self._norm(x) * (1.0 + scale2) + shift2).split(2, axis=-1)
        return x + gate2 * self.down(nn.silu(inner) * up)

    def _attended(self, x: wx.Array) -> wx.Array:
        n, tokens, width = x.shape
        heads = (n, tokens, self._heads, width // self._heads)
        q, k, v = (part.reshape(*heads) for part in self.qkv(x).split(3, axis=-1))
        y = nn.attend(self._head_norm(q), self._head_norm(k), v)
        return self.out(y.reshape(n, tokens, width))


class Residual(nn.Module):
    """Two convolutions beside what they change."""

    def __init__(self, channels: int) -> None:
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def __call__(self, x: wx.Array) -> wx.Array:
        """(n, height, width, channels) to the same."""
        return x + self.conv2(nn.silu(self.conv1(nn.silu(x))))


class Painter(nn.Module):
    """Sees 2 x 2 pixels as one place, with what the patches say of it, and draws them.

    Parameters
    ----------
    traits : int
        Numbers that patches say of a place.
    fine, coarse : int
        Channels at half and at a quarter of the picture's side.
    """

    def __init__(self, traits: int, fine: int, coarse: int) -> None:
        self.enter = nn.Conv2d(12 + traits, fine, 3, padding=1)
        self.before = Residual(fine)
        self.narrow = nn.Conv2d(fine, coarse, 3, stride=2, padding=1)
        self.middle = [Residual(coarse), Residual(coarse)]
        self.widen = nn.Conv2d(coarse, fine, 3, padding=1)
        self.after = Residual(fine)
        self.leave = nn.Conv2d(fine, 12, 3, padding=1)

    def __call__(self, places: wx.Array) -> wx.Array:
        """(n, half, half, 12 + traits) to (n, half, half, 12)."""
        fine = self.before(self.enter(places))
        coarse = self.narrow(nn.silu(fine))
        for block in self.middle:
            coarse = block(coarse)
        wide = nn.resized(nn.silu(coarse), fine.shape[1], fine.shape[2])
        return self.leave(nn.silu(self.after(fine + self.widen(wide))))


@nn.published("PictureTransformer")
class PictureTransformer(nn.Module):
    """The picture behind a noisy one, of a sentence.

    Parameters
    ----------
    settings : Settings
        Of config.json.

    Attributes
    ----------
    side : int
        Pixels of a picture, either way.
    words : int
        Of a sentence, filled up with the empty word 0.
    """

    def __init__(self, settings: Settings) -> None:
        self.side, self._patch = settings.uint("side"), settings.uint("patch")
        self.words, width = settings.uint("words"), settings.uint("width")
        heads, inner = settings.uint("heads"), settings.uint("inner")
        traits = settings.uint("traits")
        self._require_fits(settings, width, heads)
        self.word = nn.Embedding(settings.uint("vocab"), width)
        self.neighbours = nn.Linear(3 * width, width, bias=False)
        self.word_place = wx.zeros((self.words, width))
        self.patch_place = wx.zeros(((self.side // self._patch) ** 2, width))
        self.enter = nn.Linear(3 * self._patch**2, width)
        self._waves = 2 * settings.uint("frequencies")
        self.time = nn.Linear(self._waves, width)
        self.control = nn.Linear(width, 6 * width)
        self.blocks = [Block(width, heads, inner) for _ in range(settings.uint("blocks"))]
        self.last = nn.Linear(width, 2 * width)
        self.leave = nn.Linear(width, traits * (self._patch // 2) ** 2)
        self.painter = Painter(traits, settings.uint("fine"), settings.uint("coarse"))
        self._norm = _norm(width)

    def _require_fits(self, settings: Settings, width: int, heads: int) -> None:
        if not self._patch or self._patch % 4 or self.side % self._patch:
            raise settings.error(
                "patch", f"is {self._patch}, needs a multiple of 4 that divides {self.side}"
            )
        if not heads or width % heads:
            raise settings.error("heads", f"is {heads}, needs a divisor of {width}")

    def __call__(self, noisy: wx.Array, noise: wx.Array, words: wx.Array) -> wx.Array:
        """Picture without noise.

        Parameters
        ----------
        noisy : (n, side, side, 3)
            Picture, -1 to 1, with noise of standard deviation 1.
        noise : (1,)
            Share of noise in it, from 0 to 1.
        words : (n, words), integers
        """
        waves = nn.timestep_embedding(noise * 1000.0, self._waves, True, 0.0)
        time = nn.silu(self.time(waves))
        control = self.control(time).reshape(1, 6, -1)
        patches = self.enter(cut(noisy, self._patch)) + self.patch_place
        x = wx.concat([self.read(words), patches], axis=1)
        for block in self.blocks:
            x = block(x, control)
        shift, scale = self.last(time)[:, None].split(2, axis=-1)
        said = self.leave(self._norm(x[:, self.words :]) * (1.0 + scale) + shift)
        half = self.side // 2
        traits = joined(said, self._patch // 2, half)
        pixels = cut(noisy, 2).reshape(-1, half, half, 12)
        drawn = self.painter(wx.concat([pixels, traits], axis=-1))
        return joined(drawn.reshape(-1, half * half, 12), 2, self.side)

    def read(self, words: wx.Array) -> wx.Array:
        """Words (n, words), each with the two before it, as vectors (n, words, width)."""
        word = self.word(words)
        n, count, width = word.shape
        nothing = wx.zeros((n, 2, width))
        before = [wx.concat([nothing[:, :k], word[:, : count - k]], axis=1) for k in (1, 2)]
        return word + self.neighbours(wx.concat([word, *before], axis=-1)) + self.word_place


def cut(picture: wx.Array, patch: int) -> wx.Array:
    """Square pictures (n, side, side, c) as patches (n, patches, patch · patch · c)."""
    n, side, _, channels = picture.shape
    across = side // patch
    rows = picture.reshape(n, across, patch, across, patch * channels)
    return rows.swapaxes(2, 3).reshape(n, across * across, patch * patch * channels)


def joined(patches: wx.Array, patch: int, side: int) -> wx.Array:
    """What `cut` has cut: (n, patches, patch · patch · c) as (n, side, side, c)."""
    n, _, values = patches.shape
    across = side // patch
    rows = patches.reshape(n, across, across, patch, values // patch)
    return rows.swapaxes(2, 3).reshape(n, side, side, values // patch**2)


def _norm(width: int) -> nn.RMSNorm:
    """Norm without a weight."""
    return nn.RMSNorm(width, EPS, affine=False)
