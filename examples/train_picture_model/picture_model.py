"""The network in torch: a transformer over words and patches, and convolutions behind it.

It is given a picture between noise and drawing, and predicts the drawing (Li and He 2025,
arXiv:2511.13720), whose edges convolutions draw. One table of the time's shifts, scales and gates
serves all blocks, each with an offset of its own (PixArt-alpha, arXiv:2310.00426).
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

LEAST_NOISE = 0.05  # a velocity divides by the share of noise, or by this


@dataclass(frozen=True, slots=True)
class PictureConfig:
    """Sizes of a picture model."""

    vocab: int  # words, with the empty one
    words: int = 20  # in a sentence, filled up with the empty word 0
    side: int = 64  # pixels
    patch: int = 8  # pixels
    width: int = 128
    heads: int = 4
    blocks: int = 5
    inner: int = 336  # between the two matrices of a block's network
    frequencies: int = 64  # sines and as many cosines of the time
    traits: int = 16  # what a patch says of every four pixels
    fine: int = 32  # channels at half the side
    coarse: int = 64  # channels at a quarter of it


class Block(nn.Module):
    """Attention among words and patches, then a gated network, both under the time's control."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.gate_up = nn.Linear(config.width, 2 * config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.width, bias=False)
        self.offset = nn.Parameter(torch.zeros(6, config.width))

    def forward(self, x: Tensor, control: Tensor) -> Tensor:
        """(rows, tokens, width) and (rows, 6, width) to (rows, tokens, width)."""
        shift, scale, gate, shift2, scale2, gate2 = (control + self.offset).unsqueeze(2).unbind(1)
        x = x + gate * self.attend(normed(x) * (1 + scale) + shift)
        inner, up = self.gate_up(normed(x) * (1 + scale2) + shift2).chunk(2, dim=-1)
        return x + gate2 * self.down(functional.silu(inner) * up)

    def attend(self, x: Tensor) -> Tensor:
        """Each token a mixture of all, by heads."""
        rows, tokens, width = x.shape
        q, k, v = self.qkv(x).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = normed(q), normed(k)
        likeness = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
        mixed = likeness.softmax(dim=-1) @ v  # a CPU takes this back faster than the fused op
        return self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))


class Convolution(nn.Conv2d):
    """A convolution over 3 x 3 places that keeps the size, or halves it."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride=stride, padding=1)


class Residual(nn.Module):
    """Two convolutions beside what they change."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = Convolution(channels, channels), Convolution(channels, channels)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to the same."""
        return x + self.conv2(functional.silu(self.conv1(functional.silu(x))))


class Painter(nn.Module):
    """Draws edges: sees four pixels as one, and what the patches say of each such place.

    Patches alone would have to learn every shape at every place within a patch; convolutions
    learn it once.
    """

    def __init__(self, config: PictureConfig) -> None:
        super().__init__()
        fine, coarse = config.fine, config.coarse
        self.enter = Convolution(12 + config.traits, fine)
        self.before = Residual(fine)
        self.narrow = Convolution(fine, coarse, stride=2)
        self.middle = nn.ModuleList(Residual(coarse) for _ in range(2))
        self.widen = Convolution(coarse, fine)
        self.after = Residual(fine)
        self.leave = Convolution(fine, 12)

    def forward(self, noisy: Tensor, traits: Tensor) -> Tensor:
        """(rows, half, half, 12) and (rows, half, half, traits) to (rows, half, half, 12)."""
        x = torch.cat([noisy, traits], dim=-1).permute(0, 3, 1, 2)
        fine = self.before(self.enter(x))
        coarse = self.narrow(functional.silu(fine))
        for block in self.middle:
            coarse = block(coarse)
        wide = functional.interpolate(functional.silu(coarse), scale_factor=2.0)
        fine = self.after(fine + self.widen(wide))
        return self.leave(functional.silu(fine)).permute(0, 2, 3, 1)


class PictureModel(nn.Module):
    """Predicts the drawing from a noisy picture, the share of noise in it, and a sentence."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__()
        self.config = config
        width, across = config.width, config.side // config.patch
        self.word = nn.Embedding(config.vocab, width)
        self.neighbours = nn.Linear(3 * width, width, bias=False)
        self.word_place = nn.Parameter(torch.randn(config.words, width) * 0.1)
        self.patch_place = nn.Parameter(torch.randn(across**2, width) * 0.1)
        self.enter = nn.Linear(3 * config.patch**2, width)
        self.time = nn.Linear(2 * config.frequencies, width)
        self.control = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.last = nn.Linear(width, 2 * width)
        self.leave = nn.Linear(width, config.traits * (config.patch // 2) ** 2)
        self.painter = Painter(config)
        for zero in (self.control, self.last):
            nn.init.zeros_(zero.weight)
            nn.init.zeros_(zero.bias)
        for block in self.blocks:
            block.offset.data[2::3] = 0.3
        nn.init.normal_(self.word.weight, std=0.5)

    def forward(self, noisy: Tensor, noise: Tensor, words: Tensor) -> Tensor:
        """(rows, side, side, 3) in -1 to 1, (rows,) in 0 to 1, (rows, words): like `noisy`."""
        time = functional.silu(self.time(waves(noise, self.config.frequencies)))
        control = self.control(time).view(len(noise), 6, -1)
        patches = self.enter(to_patches(noisy, self.config.patch)) + self.patch_place
        x = torch.cat([self.read(words), patches], dim=1)
        for block in self.blocks:
            x = block(x, control)
        shift, scale = self.last(time).unsqueeze(1).chunk(2, dim=-1)
        said = self.leave(normed(x[:, words.shape[1] :]) * (1 + scale) + shift)
        half, patch = self.config.side // 2, self.config.patch
        traits = from_patches(said, patch // 2, half)
        pairs = to_patches(noisy, 2).unflatten(1, (half, half))
        drawn = self.painter(pairs, traits)
        return from_patches(drawn.flatten(1, 2), 2, self.config.side)

    def read(self, words: Tensor) -> Tensor:
        """Embed words, each together with the two before it."""
        word = self.word(words)
        before = [functional.pad(word, (0, 0, n, 0))[:, : word.shape[1]] for n in (1, 2)]
        return word + self.neighbours(torch.cat([word, *before], dim=-1)) + self.word_place


def normed(x: Tensor) -> Tensor:
    """Divide by the root of the mean square."""
    return functional.rms_norm(x, (x.shape[-1],), eps=1e-6)


def waves(noise: Tensor, frequencies: int) -> Tensor:
    """Cosines, then sines of the share of noise times 1000, at falling frequencies."""
    exponents = -math.log(10_000) * torch.arange(frequencies) / frequencies
    angles = 1000 * noise[:, None] * exponents.exp()
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def to_patches(picture: Tensor, patch: int) -> Tensor:
    """(rows, side, side, 3) to (rows, patches, patch * patch * 3)."""
    rows, side = picture.shape[:2]
    cut = picture.reshape(rows, side // patch, patch, side // patch, patch, 3)
    return cut.transpose(2, 3).reshape(rows, (side // patch) ** 2, -1)


def from_patches(patches: Tensor, patch: int, side: int) -> Tensor:
    """(rows, patches, patch * patch * channels) to (rows, side, side, channels)."""
    cut = patches.reshape(len(patches), side // patch, side // patch, patch, patch, -1)
    return cut.transpose(2, 3).reshape(len(patches), side, side, -1)


def loss(model: PictureModel, drawing: Tensor, words: Tensor, noise: Tensor) -> Tensor:
    """Mean square error of the velocity, noise less drawing, at the given shares of noise."""
    share = noise[:, None, None, None]
    noisy = torch.lerp(drawing, torch.randn_like(drawing), share)
    error = (model(noisy, noise, words) - drawing).float() / share.clamp_min(LEAST_NOISE)
    return error.square().mean()


@torch.no_grad()
def sample(
    model: PictureModel, words: Tensor, start: Tensor, steps: int, guidance: float, shift: float
) -> Tensor:
    """Follow the velocity from noise to pictures, away from what no words at all would give."""
    even = torch.linspace(1, 0, steps + 1)
    shares = shift * even / (1 + (shift - 1) * even)
    x = start
    both = torch.cat([words, torch.zeros_like(words)])
    for now, after in pairwise(shares):
        asked, empty = model(x.repeat(2, 1, 1, 1), now.expand(len(both)), both).float().chunk(2)
        drawn = empty + guidance * (asked - empty)
        x = x + (after - now) * (x - drawn) / now
    return x
