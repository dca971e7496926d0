"""Llama 1 to 3, Mistral, Mixtral, TinyLlama, Vicuna, InternLM 2, SmolLM 1 to 3, Seed-OSS, AFM.

Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models", §2.2: pre-norm blocks
with RMSNorm, SwiGLU and rotary embeddings; grouped-query attention as in Ainslie et al. 2023. Jiang
et al. 2024, "Mixtral of Experts", §2: eight networks in place of one, two for each token.
"""

from __future__ import annotations

import math
from typing import Any

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("llama", "internlm2")
class Llama(Decoder):
    """Llama; with experts where the file has them, and norms of queries and keys."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Attention and feed-forward, each behind a norm and beside the residual."""
        experts = self.config.uint("expert_count", 0)
        mlp = nn.Experts(config) if experts else nn.MLP(config)
        return nn.Layer(config, self.attention(config), mlp)

    def attention(self, config: nn.LayerConfig) -> nn.SelfAttention:
        """Attention of every layer."""
        qk_norm = "head" if "attn_q_norm.weight" in config else None
        return nn.SelfAttention(config, self.rope, qk_norm=qk_norm)


@architecture("mistral3")
class Mistral3(Llama):
    """Mistral AI 2025, model card of Ministral 3: queries grow with their position."""

    def make_rope(self, **changes: Any) -> nn.Rotary:  # noqa: ANN401
        """Rotation whose magnitude YaRN changes by a factor of the file's less."""
        factor = max(self.config.float("rope.scaling.factor", 1.0), 1.0)
        less = self.config.float("rope.scaling.yarn_log_multiplier", 0.0)
        attention = 1 / (1 + 0.1 * less * math.log(factor))
        changes.setdefault("attention", attention)
        return super().make_rope(**changes)

    def attention(self, config: nn.LayerConfig) -> nn.SelfAttention:
        """Llama's, with a temperature where the file has one."""
        growth = config.float("attention.temperature_scale", 0.0)
        length = self.config.uint("rope.scaling.original_context_length", 0)
        temperature = nn.Temperature(growth, length) if growth else None
        return nn.SelfAttention(config, self.rope, temperature=temperature)


@architecture("arcee")
class Arcee(Llama):
    """AFM-4.5B: squared ReLU without a gate."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """A layer of Llama with another feed-forward."""
        attention = nn.SelfAttention(config, self.rope)
        return nn.Layer(config, attention, nn.MLP(config, "relu2", gated=False))


@architecture("smollm3")
class SmolLM3(Llama):
    """Bakouch et al. 2025, "SmolLM3": every fourth layer has no positions."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Rotated, or not: as a folder lists them, or by the paper."""
        listed = "rope.layers" in self.config
        rope = self.rope if listed or (config.index + 1) % 4 else None
        return nn.Layer(config, nn.SelfAttention(config, rope), nn.MLP(config))


@architecture("seed_oss")
class SeedOss(Decoder):
    """ByteDance's: biases of queries, keys and values, and halves rotated."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """A layer of Llama, whose second norm has another name."""
        before = ("attn_norm", "post_attention_norm")
        attention = nn.SelfAttention(config, self.rope)
        return nn.Layer(config, attention, nn.MLP(config), before=before)
