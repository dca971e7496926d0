"""Llama 1 to 3, Mistral, Mixtral, InternLM 2, XVERSE, Orion, Maincoder, SmolLM, Seed-OSS, AFM.

Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models", §2.2: pre-norm blocks
with RMSNorm, SwiGLU and rotary embeddings; grouped-query attention as in Ainslie et al. 2023. Jiang
et al. 2024, "Mixtral of Experts", §2: eight experts instead of one network, two for each token.
"""

from __future__ import annotations

import math
from typing import Any

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("llama", "internlm2", "xverse")
class Llama(Decoder):
    """Llama, with experts and norms of queries and keys where the file has them."""

    # Converters permute the rows of queries and keys of Llama, so that files need adjacent pairs.
    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build a pre-norm layer of attention and feed-forward with residuals."""
        experts = self.config.uint("expert_count", 0)
        mlp = nn.Experts(config) if experts else nn.MLP(config)
        return nn.Layer(config, self.attention(config), mlp)

    def attention(self, config: nn.LayerConfig) -> nn.SelfAttention:
        """Build the attention of a layer."""
        qk_norm = "head" if "attn_q_norm.weight" in config else None
        return nn.SelfAttention(config, self.rope, qk_norm=qk_norm)


@architecture("mistral3")
class Mistral3(Llama):
    """Ministral 3 (Mistral AI 2025, model card), which scales queries by their position."""

    def make_rope(self, **changes: Any) -> nn.Rotary:  # noqa: ANN401
        """Make the rotation, with YaRN's magnitude reduced by the file's factor."""
        factor = max(self.config.float("rope.scaling.factor", 1.0), 1.0)
        less = self.config.float("rope.scaling.yarn_log_multiplier", 0.0)
        # The rotation multiplies by ``1 + 0.1 ln(factor)``; this takes back the file's share of it.
        attention = 1 / (1 + 0.1 * less * math.log(factor))
        changes.setdefault("attention", attention)
        return super().make_rope(**changes)

    def attention(self, config: nn.LayerConfig) -> nn.SelfAttention:
        """Build Llama's attention, with a temperature if the file has one."""
        growth = config.float("attention.temperature_scale", 0.0)
        length = self.config.uint("rope.scaling.original_context_length", 0)
        temperature = nn.Temperature(growth, length) if growth else None
        return nn.SelfAttention(config, self.rope, temperature=temperature)


@architecture("arcee")
class Arcee(Llama):
    """AFM-4.5B, with squared ReLU and no gate."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build Llama's layer with squared ReLU and no gate."""
        attention = nn.SelfAttention(config, self.rope)
        return nn.Layer(config, attention, nn.MLP(config, "relu2", gated=False))


@architecture("smollm3")
class SmolLM3(Llama):
    """SmolLM 3 (Bakouch et al. 2025, "SmolLM3"): every fourth layer has no positions."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build a layer, with RoPE as the file lists, or else in three of four layers."""
        # Without the key, the file does not say which layers rotate.
        listed = "rope.layers" in self.config
        rope = self.rope if listed or (config.index + 1) % 4 else None
        return nn.Layer(config, nn.SelfAttention(config, rope), nn.MLP(config))


@architecture("seed_oss")
class SeedOss(Decoder):
    """ByteDance's Seed-OSS: biases of queries, keys and values, and RoPE of a head's halves."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build Llama's layer, with another name for the second norm."""
        before = ("attn_norm", "post_attention_norm")
        attention = nn.SelfAttention(config, self.rope)
        return nn.Layer(config, attention, nn.MLP(config), before=before)


@architecture("maincoder")
class Maincoder(Llama):
    """Maincoder 1B (Maincode 2025, model card): norms of queries and keys after their rotation."""

    def attention(self, config: nn.LayerConfig) -> nn.SelfAttention:
        """Build Llama's attention, with norms after RoPE."""
        return nn.SelfAttention(config, self.rope, qk_norm="head", norm_after_rope=True)


@architecture("orion")
class Orion(Decoder):
    """Orion 14B (OrionStar 2024, "Orion-14B", §3.1): layer norms, and RoPE of a head's halves."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build Llama's layer with layer norms."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))
