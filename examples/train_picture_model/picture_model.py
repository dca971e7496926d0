"""The network in torch: a transformer over words and things, and a painter of outlines.

It is given a picture between noise and drawing, and predicts the drawing (Li and He 2025,
arXiv:2511.13720). Tokens are the background, two things and the words; they attend to one another
and to the patches of the noisy picture, as the queries of a detector do (Carion et al. 2020,
arXiv:2005.12872). What a thing's token has become, one painter turns into an outline, and the
outlines are laid over the background (Locatello et al. 2020, arXiv:2006.15055).
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

OUTLINES = 2.0  # weight of their entropy
LEAST_NOISE = 0.2  # a velocity divides by the share of noise, or by this


@dataclass(frozen=True, slots=True)
class PictureConfig:
    """Sizes of a picture model."""

    vocab: int  # words, with the empty one
    words: int = 20  # in a sentence, filled up with the empty word 0
    things: int = 2  # in a picture, at the most
    side: int = 64  # pixels
    patch: int = 8  # pixels
    width: int = 128
    heads: int = 4
    blocks: int = 3
    inner: int = 256  # between the two matrices of a block's network
    frequencies: int = 64  # sines and as many cosines of the time
    glance: int = 8  # numbers of a patch, of all of which a thing's token begins with a sum
    sketch: int = 16  # channels of a thing, at an eighth of the side
    channels: tuple[int, ...] = (48, 32, 16)  # of the painter, at an eighth of the side and on


class Block(nn.Module):
    """Attention among tokens, attention to patches and a gated network, conditioned on time."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.look = nn.Linear(config.width, config.width, bias=False)
        self.seen = nn.Linear(config.width, 2 * config.width, bias=False)
        self.looked = nn.Linear(config.width, config.width, bias=False)
        self.gate_up = nn.Linear(config.width, 2 * config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.width, bias=False)
        self.offset = nn.Parameter(torch.zeros(9, config.width))
        self.offset.data[2::3] = 0.3

    def forward(self, x: Tensor, patches: Tensor, control: Tensor) -> Tensor:
        """Update (rows, tokens, width) by (rows, patches, width) and (rows, 9, width)."""
        parts = (control + self.offset).unsqueeze(2).unbind(1)
        shift, scale, gate = parts[:3]
        q, k, v = self.qkv(normed(x) * (1 + scale) + shift).chunk(3, dim=-1)
        x = x + gate * self.out(self.attend(q, k, v))
        shift, scale, gate = parts[3:6]
        q = self.look(normed(x) * (1 + scale) + shift)
        x = x + gate * self.looked(self.attend(q, *self.seen(patches).chunk(2, dim=-1)))
        shift, scale, gate = parts[6:]
        inner, up = self.gate_up(normed(x) * (1 + scale) + shift).chunk(2, dim=-1)
        return x + gate * self.down(functional.silu(inner) * up)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the tokens by heads."""
        q, k, v = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        q, k = normed(q), normed(k)
        likeness = (q @ k.transpose(2, 3)) * 2.0  # a CPU takes this back faster than a fused op
        mixed = likeness.softmax(dim=-1) @ v
        return mixed.transpose(1, 2).flatten(2)


class Convolution(nn.Conv2d):
    """A 3 x 3 convolution that keeps the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)


class Painter(nn.Module):
    """A network that computes the share of each pixel that a thing covers, from its token."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__()
        self.sketch = (config.sketch, config.side // 8, config.side // 8)
        self.think = nn.Linear(config.width, 2 * config.width)
        self.place = nn.Linear(2 * config.width, math.prod(self.sketch))
        steps = pairwise((config.sketch, *config.channels))
        self.widen = nn.ModuleList(Convolution(n, m) for n, m in steps)
        self.leave = Convolution(config.channels[-1], 4)

    def forward(self, thing: Tensor) -> Tensor:
        """Compute logits: (n, width) to (n, 1, side, side)."""
        x = self.place(functional.silu(self.think(thing))).unflatten(1, self.sketch)
        for number, step in enumerate(self.widen):
            if number:
                x = functional.interpolate(x, scale_factor=2.0)
            x = functional.silu(step(x))
        return functional.pixel_shuffle(self.leave(x), 2)


class PictureModel(nn.Module):
    """A model that predicts the drawing from a noisy image, its share of noise, and a sentence."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__()
        self.config = config
        width, across = config.width, config.side // config.patch
        self.word = nn.Embedding(config.vocab, width)
        self.neighbours = nn.Linear(3 * width, width, bias=False)
        self.word_place = nn.Parameter(torch.randn(config.words, width) * 0.1)
        self.patch_place = nn.Parameter(torch.randn(across**2, width) * 0.3)
        self.things = nn.Parameter(torch.randn(1 + config.things, width) * 0.5)
        self.enter = nn.Linear(3 * config.patch**2, width)
        self.near = nn.Linear(width, width)
        self.glance = nn.Linear(width, config.glance)
        self.overview = nn.Linear(across**2 * config.glance, (1 + config.things) * width)
        self.time = nn.Linear(2 * config.frequencies, width)
        self.control = nn.Linear(width, 9 * width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.colour = nn.Linear(width, 3)
        self.painter = Painter(config)
        nn.init.zeros_(self.control.weight)
        nn.init.zeros_(self.control.bias)
        nn.init.normal_(self.word.weight, std=0.5)

    def forward(self, noisy: Tensor, noise: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Predict: (rows, side, side, 3) in -1 to 1, (rows,) in 0 to 1, (rows, words) to drawings.

        The first result is like `noisy`, the second are logits of the outlines of the things,
        (rows, things, side, side).
        """
        time = functional.silu(self.time(waves(noise, self.config.frequencies)))
        control = self.control(time).view(len(noise), 9, -1)
        patches = self.enter(to_patches(noisy, self.config.patch)) + self.patch_place
        patches = normed(patches + self.near(functional.silu(patches + time[:, None])))
        overview = self.overview(functional.silu(self.glance(patches)).flatten(1))
        things = self.things + overview.unflatten(1, self.things.shape)
        x = torch.cat([things, self.read(words)], dim=1)
        for block in self.blocks:
            x = block(x, patches, control)
        things = normed(x[:, : 1 + self.config.things])
        outlines = self.painter(things[:, 1:].flatten(0, 1)).unflatten(0, (len(noise), -1))
        outlines = outlines.squeeze(2)
        return compose(self.colour(things), outlines), outlines

    def read(self, words: Tensor) -> Tensor:
        """Embed words, each together with the two before it."""
        word = self.word(words)
        before = [functional.pad(word, (0, 0, n, 0))[:, : word.shape[1]] for n in (1, 2)]
        return word + self.neighbours(torch.cat([word, *before], dim=-1)) + self.word_place


def compose(colours: Tensor, outlines: Tensor) -> Tensor:
    """Lay things over the background.

    (rows, 1 + things, 3) and logits (rows, things, side, side) to (rows, side, side, 3).
    """
    behind, over = colours[:, :1, None, None], colours[:, 1:, None, None]
    covered = outlines.float().sigmoid().unsqueeze(-1)
    return (behind + (covered * (over - behind)).sum(1, keepdim=True)).squeeze(1)


def normed(x: Tensor) -> Tensor:
    """Divide by the root of the mean square."""
    return functional.rms_norm(x, (x.shape[-1],), eps=1e-6)


def waves(noise: Tensor, frequencies: int) -> Tensor:
    """Return cosines, then sines of the share of noise times 1000, at falling frequencies."""
    exponents = -math.log(10_000) * torch.arange(frequencies) / frequencies
    angles = 1000 * noise[:, None] * exponents.exp()
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def to_patches(picture: Tensor, patch: int) -> Tensor:
    """Split into patches: (rows, side, side, 3) to (rows, patches, patch * patch * 3)."""
    rows, side = picture.shape[:2]
    cut = picture.reshape(rows, side // patch, patch, side // patch, patch, 3)
    return cut.transpose(2, 3).reshape(rows, (side // patch) ** 2, -1)


def loss(
    model: PictureModel, drawing: Tensor, outlines: Tensor, words: Tensor, noise: Tensor
) -> Tensor:
    """Compute the mean square error of the velocity, plus the entropy of the outlines.

    That a thing has the token that stands for it, in the order of the sentence, the error alone
    would say late.
    """
    share = noise[:, None, None, None]
    noisy = torch.lerp(drawing, torch.randn_like(drawing), share)
    drawn, logits = model(noisy, noise, words)
    error = (drawn - drawing).float() / share.clamp_min(LEAST_NOISE)
    entropy = functional.binary_cross_entropy_with_logits(
        logits.float(), outlines, reduction="none"
    )
    named = (words[:, 0] > 0).float()  # without words, any thing may be the first
    return error.square().mean() + OUTLINES * (entropy.mean(dim=(1, 2, 3)) * named).mean()


@torch.no_grad()
def sample(
    model: PictureModel, words: Tensor, start: Tensor, steps: int, guidance: float, shift: float
) -> Tensor:
    """Integrate the velocity from noise to images, with guidance away from the empty sentence."""
    even = torch.linspace(1, 0, steps + 1)
    shares = shift * even / (1 + (shift - 1) * even)
    x = start
    both = torch.cat([words, torch.zeros_like(words)])
    for now, after in pairwise(shares):
        asked, empty = model(x.repeat(2, 1, 1, 1), now.expand(len(both)), both)[0].float().chunk(2)
        drawn = empty + guidance * (asked - empty)
        x = x + (after - now) * (x - drawn) / now
    return x
