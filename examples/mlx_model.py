"""A language model in MLX's style: code as in mlx-lm, with two imports changed.

    $ python examples/mlx_model.py tests/data/mlx_qwen3 --ids 3,60,17,99,5,44,81,2,120,63,7
    45 47 91 4 102 69 88 69 4 69 22 43 98 43 69 104

The folder is what ``mlx_lm.convert`` makes of a Qwen3 model, quantised or not: config.json and
safetensors. Paper: Qwen3 Technical Report, 2025; norms of queries and keys: section 2.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import wgpu_backend.array as mx
import wgpu_backend.array.nn as nn


@dataclass
class ModelArgs:
    """The arguments of a model, from config.json."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    vocab_size: int
    rope_theta: float
    tie_word_embeddings: bool = False

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> ModelArgs:
        """Make arguments from a configuration, which may have further entries."""
        return cls(**{f.name: config[f.name] for f in fields(cls) if f.name in config})


class KVCache:
    """Keys and values of the tokens so far, (batch, heads, tokens, cols)."""

    def __init__(self) -> None:
        self.keys: mx.Array | None = None
        self.values: mx.Array | None = None
        self.offset = 0

    def update_and_fetch(self, keys: mx.Array, values: mx.Array) -> tuple[mx.Array, mx.Array]:
        """Append new keys and values, and return all of them."""
        if self.keys is not None and self.values is not None:
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        self.keys, self.values, self.offset = keys, values, keys.shape[2]
        return keys, values


class Attention(nn.Module):
    """Attention of groups of heads, with norms of queries and keys before they are rotated."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = args.num_attention_heads, args.num_key_value_heads
        self.scale = args.head_dim**-0.5
        width, head = args.hidden_size, args.head_dim
        self.q_proj = nn.Linear(width, self.n_heads * head, bias=False)
        self.k_proj = nn.Linear(width, self.n_kv_heads * head, bias=False)
        self.v_proj = nn.Linear(width, self.n_kv_heads * head, bias=False)
        self.o_proj = nn.Linear(self.n_heads * head, width, bias=False)
        self.q_norm = nn.RMSNorm(head, eps=args.rms_norm_eps)
        self.k_norm = nn.RMSNorm(head, eps=args.rms_norm_eps)
        self.rope = nn.RoPE(head, traditional=False, base=args.rope_theta)

    def __call__(self, x: mx.Array, cache: KVCache) -> mx.Array:
        """Attend to all tokens so far."""
        batch, length, _ = x.shape
        queries = self.q_norm(self.q_proj(x).reshape(batch, length, self.n_heads, -1))
        keys = self.k_norm(self.k_proj(x).reshape(batch, length, self.n_kv_heads, -1))
        values = self.v_proj(x).reshape(batch, length, self.n_kv_heads, -1).transpose(0, 2, 1, 3)
        queries = self.rope(queries.transpose(0, 2, 1, 3), offset=cache.offset)
        keys = self.rope(keys.transpose(0, 2, 1, 3), offset=cache.offset)
        keys, values = cache.update_and_fetch(keys, values)
        mask = "causal" if length > 1 else None
        y = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=mask)
        return self.o_proj(y.transpose(0, 2, 1, 3).reshape(batch, length, -1))


class MLP(nn.Module):
    """A gated feed-forward network."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.down_proj = nn.Linear(hidden_dim, dim, bias=False)
        self.up_proj = nn.Linear(dim, hidden_dim, bias=False)

    def __call__(self, x: mx.Array) -> mx.Array:
        """Project, gate, project back."""
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class TransformerBlock(nn.Module):
    """Attention and an MLP, each after a norm and with a residual connection."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.self_attn = Attention(args)
        self.mlp = MLP(args.hidden_size, args.intermediate_size)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, x: mx.Array, cache: KVCache) -> mx.Array:
        """Mix tokens, then channels."""
        h = x + self.self_attn(self.input_layernorm(x), cache)
        return h + self.mlp(self.post_attention_layernorm(h))


class Qwen3Model(nn.Module):
    """Embeddings, blocks and a final norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [TransformerBlock(args) for _ in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, inputs: mx.Array, cache: list[KVCache]) -> mx.Array:
        """Compute the states of (batch, tokens) ids."""
        h = self.embed_tokens(inputs)
        for layer, c in zip(self.layers, cache, strict=True):
            h = layer(h, c)
        return self.norm(h)


class Model(nn.Module):
    """A language model: logits of ids."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.model = Qwen3Model(args)
        if not args.tie_word_embeddings:
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(self, inputs: mx.Array, cache: list[KVCache] | None = None) -> mx.Array:
        """Compute logits, (batch, tokens, vocabulary)."""
        out = self.model(inputs, cache or self.make_cache())
        return self.lm_head(out) if "lm_head" in self else self.model.embed_tokens.as_linear(out)

    def make_cache(self) -> list[KVCache]:
        """Make a cache for each layer."""
        return [KVCache() for _ in self.model.layers]


def load(folder: str | Path) -> Model:
    """Load a model from a folder of mlx-lm."""
    path = Path(folder)
    config = json.loads((path / "config.json").read_text())
    model = Model(ModelArgs.from_dict(config))
    weights: dict[str, mx.Array] = {}
    for file in sorted(path.glob("model*.safetensors")):
        weights.update(mx.load(str(file)))
    if (quantization := config.get("quantization")) is not None:
        nn.quantize(
            model,
            group_size=quantization["group_size"],
            bits=quantization["bits"],
            class_predicate=lambda name, module: f"{name}.scales" in weights,
        )
    return model.load_weights(list(weights.items()))


def generate(model: Model, ids: list[int]) -> Iterator[int]:
    """Generate the likeliest token repeatedly."""
    cache = model.make_cache()
    given = mx.array([ids])
    while True:
        token = mx.argmax(model(given, cache)[:, -1, :], axis=-1)
        yield int(token.item())
        given = token.reshape(1, 1)


def main() -> None:
    """Continue a sequence of ids."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ids", default="1,2,3")
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--device")
    options = parser.parse_args()
    if options.device:
        mx.set_default_device(options.device)
    tokens = generate(load(options.folder), [int(i) for i in options.ids.split(",")])
    print(*(next(tokens) for _ in range(options.count)))


if __name__ == "__main__":
    main()
