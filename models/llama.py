"""Llama and its kin: Llama 2 and 3, Mistral, TinyLlama, Vicuna.

Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models", §2.2: pre-norm blocks
with RMSNorm, SwiGLU and rotary embeddings; grouped-query attention as in Ainslie et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wgpu_backend import nn
from wgpu_backend.batch import Batch
from wgpu_backend.config import Config
from wgpu_backend.errors import ModelError
from wgpu_backend.kvcache.layers import LayerShape
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.model import Model, architecture
from wgpu_backend.nn import weight


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes of the model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    value: int
    eps: float

    @classmethod
    def from_config(cls, config: Config) -> Options:
        """Read and check the sizes a file gives."""
        layers = config.uint("block_count")
        hidden = config.uint("embedding_length")
        heads = config.uint("attention.head_count")
        kv_heads = config.uint("attention.head_count_kv", heads)
        if not heads or not kv_heads or heads % kv_heads:
            raise ModelError(
                f"{config.source}: {heads} attention heads, not a multiple of {kv_heads} KV heads"
            )
        head = config.uint("attention.key_length", hidden // heads)
        value = config.uint("attention.value_length", hidden // heads)
        eps = config.float("attention.layer_norm_rms_epsilon")
        if eps < 0:
            raise ModelError(f"{config.source}: layer_norm_rms_epsilon is {eps}, needs at least 0")
        if config.uint("expert_count", 0):
            raise ModelError(f"{config.source}: it has experts, which {cls.__module__} has not")
        return cls(layers, hidden, heads, kv_heads, head, value, eps)

    def layer(self, inner: int) -> dict[str, tuple[int, ...]]:
        """Shapes of a layer's weights, with `inner` values between those of the feed-forward."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        values = self.kv_heads * self.value
        return {
            "attn_norm.weight": (self.hidden,),
            "attn_q.weight": (queries, self.hidden),
            "attn_k.weight": (keys, self.hidden),
            "attn_v.weight": (values, self.hidden),
            "attn_q.bias": (queries,),
            "attn_k.bias": (keys,),
            "attn_v.bias": (values,),
            "attn_q_norm.weight": (self.head,),
            "attn_k_norm.weight": (self.head,),
            "attn_output.weight": (self.hidden, self.heads * self.value),
            "ffn_norm.weight": (self.hidden,),
            "ffn_gate.weight": (inner, self.hidden),
            "ffn_up.weight": (inner, self.hidden),
            "ffn_down.weight": (self.hidden, inner),
        }


class SelfAttention(nn.Module):
    """Grouped-query attention with rotated queries and keys."""

    query: nn.Linear = weight("attn_q")
    key: nn.Linear = weight("attn_k")
    value: nn.Linear = weight("attn_v")
    output: nn.Linear = weight("attn_output")
    query_norm: nn.RMSNorm | None = weight("attn_q_norm")
    key_norm: nn.RMSNorm | None = weight("attn_k_norm")

    def forward(
        self, layer: int, x: Tensor, batch: Batch, options: Options, rotary: nn.Rotary
    ) -> Tensor:
        """Attend: (tokens, hidden) to (tokens, heads * head), for `output`."""
        tokens = x.shape[0]
        q, k, v = nn.fused_linear(x, self.query, self.key, self.value)
        q = q.reshape(tokens, options.heads, options.head)
        k = k.reshape(tokens, options.kv_heads, options.head)
        v = v.reshape(tokens, options.kv_heads, -1)
        if self.query_norm is not None:
            q = self.query_norm(q, options.eps)
        if self.key_norm is not None:
            k = self.key_norm(k, options.eps)
        q, k = rotary(q, batch.positions), rotary(k, batch.positions)
        return nn.attend(layer, q, k, v, batch, scale=options.head**-0.5)


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    gate: nn.Linear = weight("ffn_gate")
    up: nn.Linear = weight("ffn_up")
    down: nn.Linear = weight("ffn_down")

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """(tokens, hidden) to (tokens, hidden), with the residual added."""
        return self.down(self.gate(x).swiglu(self.up(x)), residual)


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside the residual."""

    attention_norm: nn.RMSNorm = weight("attn_norm")
    attention: SelfAttention = weight("")
    mlp_norm: nn.RMSNorm = weight("ffn_norm")
    mlp: MLP = weight("")

    def forward(
        self,
        layer: int,
        x: Tensor,
        batch: Batch,
        options: Options,
        rotary: nn.Rotary,
        *,
        last: bool = False,
    ) -> Tensor:
        """One block; behind the attention of the last, only the wanted rows go on."""
        normed = self.attention_norm(x, options.eps)
        y = self.attention.forward(layer, normed, batch, options, rotary)
        if last:
            x, y = batch.wanted(x), batch.wanted(y)
        x = self.attention.output(y, x)
        return self.mlp.forward(self.mlp_norm(x, options.eps), x)


@architecture("llama")
class Llama(Model):
    """Llama."""

    fused_weights = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))
    rope_interleaved = True

    token_embedding: nn.Embedding = weight("token_embd")
    layers: list[Layer] = weight("blk")
    output_norm: nn.RMSNorm = weight("output_norm")
    output: nn.Linear = weight("output", alt="token_embd")
    rope_factors: Tensor | None = weight("rope_freqs.weight")
    rope_long: Tensor | None = weight("rope_factors_long.weight")
    rope_short: Tensor | None = weight("rope_factors_short.weight")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.options = Options.from_config(self.config)
        if len(self.layers) != self.options.layers:
            raise self.fail(
                f"it has {len(self.layers)} layers, block_count says {self.options.layers}"
            )
        self.require_shapes(self._shapes())
        self._rope = nn.RopeOptions.from_config(
            self.config, self.options.head, interleaved=self.rope_interleaved
        )
        self.fit_context(self.config.uint("context_length", self._rope.original_context))

    def fit_context(self, positions: int) -> None:
        """Rotate by what suits a context of so many positions: LongRoPE has two sets of factors."""
        factors = self._factors(positions)
        values = None if factors is None else self.backend.executor.read(factors)
        self.rotary = nn.Rotary(self._rope, values)

    def _factors(self, positions: int) -> Tensor | None:
        if not self._rope.by_context:
            return self.rope_factors
        if self.rope_long is None or self.rope_short is None:
            raise self.fail(
                "rope.scaling.type is 'longrope', needs the tensors rope_factors_long.weight and "
                "rope_factors_short.weight"
            )
        return self.rope_long if positions > self._rope.original_context else self.rope_short

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """What each weight has to be, by the keys of the file."""
        options, hidden = self.options, self.options.hidden
        vocabulary = self.token_embedding.weight.shape[0]
        shapes = {
            "token_embd.weight": (vocabulary, hidden),
            "output_norm.weight": (hidden,),
            "output.weight": (vocabulary, hidden),
        }
        own = self.layers[0].mlp.gate.weight.shape[0]
        inner = self.config.uint_per_layer("feed_forward_length", options.layers, own)
        for i, values in enumerate(inner):
            shapes |= {f"blk.{i}.{name}": shape for name, shape in options.layer(values).items()}
        return shapes

    def cache_layers(self) -> Sequence[LayerShape]:
        """Keys and values of the KV heads."""
        kv = self.options.kv_heads
        return [
            LayerShape(kv * self.options.head, layer.attention.value.weight.shape[0])
            for layer in self.layers
        ]

    def hidden(self, batch: Batch) -> Tensor:
        """States of the wanted rows after the last norm."""
        x = self.token_embedding(batch.tokens)
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            x = layer.forward(i, x, batch, self.options, self.rotary, last=last)
        return self.output_norm(x, self.options.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every vocabulary entry."""
        return self.output.precise(hidden)
