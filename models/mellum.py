"""Mellum 2 and Laguna: windows in three of four layers, experts.

JetBrains 2025, model card of Mellum 2: Qwen3's layers with experts; layers that see all are
stretched by YaRN. Poolside 2026, model card of Laguna: the first of four layers sees all, attention
is behind a gate for each head, and experts are chosen by a sigmoid and a bias.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("mellum")
class Mellum(Decoder):
    """Weights of the chosen experts are normalised."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Rotated as suits the window."""
        window = config.window(4)
        rope = self.local_rope if window else self.rope
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head")
        return nn.Layer(config, attention, nn.Experts(config))


@architecture("laguna")
class Laguna(Decoder):
    """Gates are softplus; the first layers have no experts."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Rotated as suits the window."""
        window = config.window(4, first=True)
        rope = self.local_rope if window else self.rope
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head", gate="softplus")
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp)
