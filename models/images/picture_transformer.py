"""The network of the bundled image model, trained by `examples/train_picture_model`.

Tokens stand for the background, the things that an image can show, and the words of a sentence.
They attend to each other and to patches of the noisy image, like the queries of a detector (Carion
et al. 2020, "End-to-End Object Detection with Transformers"). A thing's token begins with a sum
over all patches, from which positions are learned sooner than by attention. One painter turns the
token of each thing into an outline; outlines are drawn over the background (Locatello et al. 2020,
"Object-Centric Learning with Slot Attention", §3.1). The output is the image without noise (Li & He
2025, "Back to Basics: Let Denoising Generative Models Denoise"). All blocks share one table of
shifts, scales and gates by timestep, each with an offset of its own (Chen et al. 2023,
"PixArt-α", §2.3, adaLN-single).
"""

from __future__ import annotations

from itertools import pairwise

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

from .networks import Network

# Epsilon of all norms.
EPS = 1e-6
# Factor of attention scores; queries and keys have unit mean square.
SHARPNESS = 2.0
# Pixels along the side of a cell of the painter's last layer.
LEAVES = 2


class Block(nn.Module):
    """Self-attention, attention to patches, and a gated feed-forward network, all modulated."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.look = nn.Linear(width, width, bias=False)
        self.seen = nn.Linear(width, 2 * width, bias=False)
        self.looked = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.offset = wx.zeros((9, width))
        self._norm, self._head_norm = _norm(width), _norm(width // heads)
        self._heads = heads

    def __call__(self, x: wx.Array, patches: wx.Array, control: wx.Array) -> wx.Array:
        """Map (n, tokens, width), (n, patches, width) and (1, 9, width) to the first shape."""
        parts = (control + self.offset).split(9, axis=1)
        shift, scale, gate = parts[:3]
        q, k, v = self.qkv(self._norm(x) * (1.0 + scale) + shift).split(3, axis=-1)
        x = x + gate * self.out(self._attend(q, k, v))
        shift, scale, gate = parts[3:6]
        q = self.look(self._norm(x) * (1.0 + scale) + shift)
        k, v = self.seen(patches).split(2, axis=-1)
        x = x + gate * self.looked(self._attend(q, k, v))
        shift, scale, gate = parts[6:]
        inner, up = self.gate_up(self._norm(x) * (1.0 + scale) + shift).split(2, axis=-1)
        return x + gate * self.down(nn.silu(inner) * up)

    def _attend(self, q: wx.Array, k: wx.Array, v: wx.Array) -> wx.Array:
        q, k, v = (x.reshape(*x.shape[:2], self._heads, -1) for x in (q, k, v))
        mixed = nn.attend(self._head_norm(q), self._head_norm(k), v, scale=SHARPNESS)
        return mixed.reshape(*mixed.shape[:2], -1)


class Painter(nn.Module):
    """A network that draws the outline of a thing: the share of each pixel that it covers.

    Parameters
    ----------
    width : int
        Width of a token.
    side : int
        Height and width of an image, in pixels.
    sketch : int
        Channels of a thing's sketch.
    channels : list of int
        Channels of the convolutions, each at twice the size of the one before.
    """

    def __init__(self, width: int, side: int, sketch: int, channels: list[int]) -> None:
        self._side = side
        self._across = side // (LEAVES << (len(channels) - 1))
        self._sketch = sketch
        self.think = nn.Linear(width, 2 * width)
        self.place = nn.Linear(2 * width, sketch * self._across**2)
        self.widen = [nn.Conv2d(n, m, 3, padding=1) for n, m in pairwise((sketch, *channels))]
        self.leave = nn.Conv2d(channels[-1], LEAVES**2, 3, padding=1)

    def __call__(self, thing: wx.Array) -> wx.Array:
        """Map (n, width) to (n, side, side, 1), 0 to 1."""
        x = self.place(nn.silu(self.think(thing)))
        x = x.reshape(-1, self._sketch, self._across, self._across).transpose(0, 2, 3, 1)
        for number, step in enumerate(self.widen):
            if number:
                x = nn.resized(x, 2 * x.shape[1], 2 * x.shape[2])
            x = nn.silu(step(x))
        places = self.leave(x).reshape(x.shape[0], -1, LEAVES**2)
        return nn.sigmoid(join_patches(places, LEAVES, self._side))


@nn.published("PictureTransformer")
class PictureTransformer(Network):
    """A network that predicts the image without noise from a noisy image and a sentence.

    Attributes
    ----------
    side : int
        Height and width of an image, in pixels.
    words : int
        Number of words of a sentence, padded with the empty word 0.
    """

    def __init__(self, settings: Settings) -> None:
        self.side, self._patch = settings.uint("side"), settings.uint("patch")
        self.words, width = settings.uint("words"), settings.uint("width")
        heads, inner = settings.uint("heads"), settings.uint("inner")
        channels = settings.uints("channels")
        self._require_fits(settings, width, heads, channels)
        self.word = nn.Embedding(settings.uint("vocab"), width)
        self.neighbours = nn.Linear(3 * width, width, bias=False)
        self.word_place = wx.zeros((self.words, width))
        self.patch_place = wx.zeros(((self.side // self._patch) ** 2, width))
        things, glance = 1 + settings.uint("things"), settings.uint("glance")
        self.things = wx.zeros((things, width))
        self.enter = nn.Linear(3 * self._patch**2, width)
        self.near = nn.Linear(width, width)
        self.glance = nn.Linear(width, glance)
        self.overview = nn.Linear(glance * self.patch_place.shape[0], things * width)
        self._waves = 2 * settings.uint("frequencies")
        self.time = nn.Linear(self._waves, width)
        self.control = nn.Linear(width, 9 * width)
        self.blocks = [Block(width, heads, inner) for _ in range(settings.uint("blocks"))]
        self.colour = nn.Linear(width, 3)
        self.painter = Painter(width, self.side, settings.uint("sketch"), channels)
        self._norm = _norm(width)

    def _require_fits(
        self, settings: Settings, width: int, heads: int, channels: list[int]
    ) -> None:
        if not self._patch or self.side % self._patch:
            raise settings.error("patch", f"is {self._patch}, needs a divisor of {self.side}")
        if not heads or width % heads:
            raise settings.error("heads", f"is {heads}, needs a divisor of {width}")
        if not channels or self.side % (LEAVES << (len(channels) - 1)):
            raise settings.error(
                "channels", f"has {len(channels)}, but {self.side} pixels are not to be so divided"
            )

    def __call__(self, noisy: wx.Array, noise: wx.Array, words: wx.Array) -> wx.Array:
        """Predict the image without noise.

        Parameters
        ----------
        noisy : (n, side, side, 3)
            Image, -1 to 1, with noise of standard deviation 1.
        noise : (1,)
            Share of noise in it, from 0 to 1.
        words : (n, words), integers
            Ids of words.
        """
        waves = nn.timestep_embedding(noise * 1000.0, self._waves, True, 0.0)
        time = nn.silu(self.time(waves))
        control = self.control(time).reshape(1, 9, -1)
        patches = self.enter(cut_patches(noisy, self._patch)) + self.patch_place
        patches = self._norm(patches + self.near(nn.silu(patches + time[:, None])))
        glances = nn.silu(self.glance(patches)).reshape(patches.shape[0], -1)
        things = self.things + self.overview(glances).reshape(-1, *self.things.shape)
        x = wx.concat([things, self.read(words)], axis=1)
        for block in self.blocks:
            x = block(x, patches, control)
        return self.compose(self._norm(x[:, : self.things.shape[0]]))

    def read(self, words: wx.Array) -> wx.Array:
        """Embed words (n, words), each with the two before it: (n, words, width)."""
        word = self.word(words)
        n, count, width = word.shape
        nothing = wx.zeros((n, 2, width))
        before = [wx.concat([nothing[:, :k], word[:, : count - k]], axis=1) for k in (1, 2)]
        return word + self.neighbours(wx.concat([word, *before], axis=-1)) + self.word_place

    def compose(self, tokens: wx.Array) -> wx.Array:
        """Draw the things over the background: (n, 1 + things, width) to (n, side, side, 3)."""
        n, count, width = tokens.shape
        colours = self.colour(tokens)[:, :, None, None]
        covered = self.painter(tokens[:, 1:].reshape(-1, width))
        covered = covered.reshape(n, count - 1, self.side, self.side, 1)
        behind = colours[:, :1]
        return (behind + (covered * (colours[:, 1:] - behind)).sum(axis=1, keepdims=True))[:, 0]


def cut_patches(picture: wx.Array, patch: int) -> wx.Array:
    """Cut square images (n, side, side, c) into patches (n, patches, patch · patch · c)."""
    n, side, _, channels = picture.shape
    across = side // patch
    rows = picture.reshape(n, across, patch, across, patch * channels)
    return rows.swapaxes(2, 3).reshape(n, across * across, patch * patch * channels)


def join_patches(patches: wx.Array, patch: int, side: int) -> wx.Array:
    """Join the patches of `cut_patches`: (n, patches, patch · patch · c) to (n, side, side, c)."""
    n, _, values = patches.shape
    across = side // patch
    rows = patches.reshape(n, across, across, patch, values // patch)
    return rows.swapaxes(2, 3).reshape(n, side, side, values // patch**2)


def _norm(width: int) -> nn.RMSNorm:
    """Make a norm without a weight."""
    return nn.RMSNorm(width, EPS, affine=False)
