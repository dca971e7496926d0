"""The network: a small Llama, written so that its weights go into a GGUF file as they are.

Llama GGUF files rotate neighbouring pairs of a head's values (0 and 1, 2 and 3, ...), and so does
`rotate` here; the query and key weights need no permutation on the way out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class StoryConfig:
    """Sizes; every row length is a multiple of 32, the block of Q8_0."""

    vocab: int = 2048
    context: int = 512
    hidden: int = 192
    feed_forward: int = 448
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    norm_eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def head_dim(self) -> int:
        """Values per head."""
        return self.hidden // self.heads


def rope_table(config: StoryConfig) -> Tensor:
    """Compute cosine and sine of each angle: (context, head_dim / 2, 2)."""
    exponents = torch.arange(0, config.head_dim, 2).double() / config.head_dim
    angles = torch.arange(config.context).double()[:, None] * config.rope_base**-exponents
    return torch.stack((angles.cos(), angles.sin()), dim=-1).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate neighbouring pairs of `x` (batch, heads, tokens, head_dim) by `table`'s angles."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = table[..., 0], table[..., 1]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Causal attention with fewer key-value heads than query heads."""

    def __init__(self, config: StoryConfig) -> None:
        super().__init__()
        kv_width = config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.attn_q = nn.Linear(config.hidden, config.hidden, bias=False)
        self.attn_k = nn.Linear(config.hidden, kv_width, bias=False)
        self.attn_v = nn.Linear(config.hidden, kv_width, bias=False)
        self.attn_output = nn.Linear(config.hidden, config.hidden, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, table: Tensor, cache: Cache | None) -> Tensor:
        """Attend from `x` (batch, tokens, hidden) to itself and to the contents of `cache`."""
        q = rotate(self._heads(self.attn_q(x)), table)
        k = rotate(self._heads(self.attn_k(x)), table)
        v = self._heads(self.attn_v(x))
        if cache is not None:
            if cache:
                past_k, past_v = cache.pop()
                k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
            cache.append((k, v))
        causal = q.shape[2] > 1  # a single new token sees everything
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return self.attn_output(out.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and a SwiGLU feed-forward network, each after a norm and within a residual."""

    def __init__(self, config: StoryConfig) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.ffn_gate = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.ffn_up = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.ffn_down = nn.Linear(config.feed_forward, config.hidden, bias=False)

    def forward(self, x: Tensor, table: Tensor, cache: Cache | None) -> Tensor:
        """Return the next residual stream, like `x`."""
        x = x + self.attention(self.attn_norm(x), table, cache)
        h = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(h)) * self.ffn_up(h))


class StoryModel(nn.Module):
    """A language model from token ids to logits; the output head is the embedding."""

    rope: Tensor

    def __init__(self, config: StoryConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocab, config.hidden)
        self.blk = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.output_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.register_buffer("rope", rope_table(config), persistent=False)
        self._initialize()

    def _initialize(self) -> None:
        """Draw normal weights; those that write to the residual stream are smaller."""
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            writes = name.endswith(("attn_output.weight", "ffn_down.weight"))
            std = weight.shape[1] ** -0.5 if name != "token_embd.weight" else 0.02
            nn.init.normal_(weight, std=std / (2 * self.config.layers) ** 0.5 if writes else std)

    def forward(self, tokens: Tensor, caches: list[Cache] | None = None, start: int = 0) -> Tensor:
        """Compute logits (batch, tokens, vocab) of `tokens` (batch, tokens) that begin at `start`.

        `caches` holds one list per layer, empty at first; it is extended in place.
        """
        table = self.rope[start : start + tokens.shape[1]]
        x = self.token_embd(tokens)
        for layer, block in enumerate(self.blk):
            x = block(x, table, caches[layer] if caches is not None else None)
        return functional.linear(self.output_norm(x), self.token_embd.weight)

    @torch.no_grad()
    def generate(
        self, prompts: Tensor, limit: int, temperature: float, stop: int, rng: torch.Generator
    ) -> list[list[int]]:
        """Continue prompts of one length (batch, tokens) until `stop` or `limit` new tokens.

        Returns
        -------
        New tokens of each prompt, with `stop` as the last if it was reached.
        """
        caches: list[Cache] = [[] for _ in self.blk]
        out: list[list[int]] = [[] for _ in prompts]
        tokens, start = prompts, 0
        for _ in range(min(limit, self.config.context - prompts.shape[1])):
            logits = self(tokens, caches, start)[:, -1]
            start += tokens.shape[1]
            tokens = pick(logits, temperature, rng)
            for line, token in zip(out, tokens[:, 0].tolist(), strict=True):
                if not line or line[-1] != stop:
                    line.append(token)
            if all(line[-1] == stop for line in out):
                break
        return out


def pick(logits: Tensor, temperature: float, rng: torch.Generator) -> Tensor:
    """Draw one token from each row of `logits` (batch, vocab); the likeliest at temperature 0."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=rng)
