"""Mellum 2 and Laguna: windows in three of four layers, experts.

JetBrains 2025, model card of Mellum 2: Qwen3's layers with experts; layers with full attention use
YaRN. Poolside 2026, model card of Laguna: the first of four layers has full attention, each head is
gated, and experts are chosen by a sigmoid and a bias.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("mellum")
class Mellum(Decoder):
    """Mellum 2, whose expert weights are normalised."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with the rotation that fits its window."""
        window = config.window(4)
        # YaRN stretches positions only where a layer sees all of the context.
        rope = self.local_rope if window else self.rope
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head")
        return nn.Layer(config, attention, nn.Experts(config))


@architecture("laguna")
class Laguna(Decoder):
    """Laguna, with softplus gates; the first layers are dense."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with the rotation that fits its window."""
        window = config.window(4, first=True)
        rope = self.local_rope if window else self.rope
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head", gate="softplus")
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp)
