"""The network: CLIP's vision transformer, LLaVA's projector, and the story model's Llama.

Modules and parameters have the names of llama.cpp's mmproj files, so that they are written as they
are.
"""
# torch is none of the package's dependencies, and other modules are in the story's folder.
# pyright: reportMissingImports=false

from dataclasses import dataclass

import torch
from story_model import StoryConfig, StoryModel
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """Sizes of the tower; every row length is a multiple of 32."""

    image: int = 48
    patch: int = 8
    width: int = 64
    heads: int = 2
    inner: int = 192
    layers: int = 3
    eps: float = 1e-5

    @property
    def patches(self) -> int:
        """Patches of a picture."""
        return (self.image // self.patch) ** 2


class Layer(nn.Module):
    """A pre-norm layer with biases, full attention and quick GELU, as CLIP's."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.ln1, self.ln2 = (nn.LayerNorm(width, eps=config.eps) for _ in range(2))
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.ffn_up = nn.Linear(width, config.inner)
        self.ffn_down = nn.Linear(config.inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next states of (batch, rows, width)."""
        h = self.ln1(x)
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.attn_out(mixed.transpose(1, 2).flatten(2))
        h = self.ffn_up(self.ln2(x))
        return x + self.ffn_down(h * torch.sigmoid(1.702 * h))


class Tower(nn.Module):
    """Patches, a class row and positions, a norm, and layers."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.patch_embd = nn.Conv2d(3, config.width, config.patch, config.patch, bias=False)
        self.class_embd = nn.Parameter(torch.randn(config.width) * 0.02)
        self.position_embd = nn.Embedding(config.patches + 1, config.width)
        nn.init.normal_(self.position_embd.weight, std=0.02)
        self.pre_ln = nn.LayerNorm(config.width, eps=config.eps)
        self.blk = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(self, pixels: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to (batch, patches, width), without the class row."""
        x = self.patch_embd(pixels).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_embd.expand(len(x), 1, -1), x), dim=1)
        x = self.pre_ln(x + self.position_embd.weight)
        for layer in self.blk:
            x = layer(x)
        return x[:, 1:]


class EyesModel(nn.Module):
    """A tower, a projector of two matrices, and a language model."""

    def __init__(self, tower: TowerConfig, text: StoryConfig) -> None:
        super().__init__()
        self.config = tower
        self.v = Tower(tower)
        self.mm = nn.ModuleDict(
            {"0": nn.Linear(tower.width, text.hidden), "2": nn.Linear(text.hidden, text.hidden)}
        )
        self.text = StoryModel(text)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return a picture's rows among the tokens: (batch, patches, hidden)."""
        return self.mm["2"](functional.gelu(self.mm["0"](self.v(pixels))))

    def forward(self, tokens: Tensor, pixels: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
        """Compute logits (batch, tokens, vocab).

        Parameters
        ----------
        tokens : (batch, tokens)
            Pictures' places hold any token.
        pixels : (pictures, 3, height, width)
        rows, starts : (pictures,)
            Row of the batch, and first place in it, of each picture.
        """
        text = self.text
        x = text.token_embd(tokens).clone()
        places = starts[:, None] + torch.arange(self.config.patches)
        x[rows[:, None], places] = self.encode(pixels)
        table = text.rope[: tokens.shape[1]]
        for block in text.blk:
            x = block(x, table, None)
        return functional.linear(text.output_norm(x), text.token_embd.weight)
