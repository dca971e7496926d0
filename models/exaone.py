"""EXAONE 3 to 4, K-EXAONE; openPangu Embedded.

LG AI Research 2024, "EXAONE 3.0 7.8B", §2: Llama's layers, with RoPE of a head's halves.
LG AI Research 2025, "EXAONE 4.0", §2.1: norms after attention and feed-forward instead of before,
and of every query and key head. The larger model has a window in three of four layers, and no
positions in the fourth. LG AI Research 2026, "K-EXAONE", §2: pre-norm layers again, and experts.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("exaone", "pangu-embedded")
class Exaone(Decoder):
    """EXAONE 3 and 3.5; openPangu Embedded, which adds biases to the attention's products."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("exaone4")
class Exaone4(Decoder):
    """EXAONE 4, with norms after attention and feed-forward."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer; in models with windows only layers with a window have RoPE."""
        window = config.window(4)
        # The smaller model has no windows, and positions in all layers.
        everywhere = not self.config.uint("attention.sliding_window", 0)
        rope = self.rope if window or everywhere else None
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head")
        after = ("post_attention_norm", "post_ffw_norm")
        return nn.Layer(config, attention, nn.MLP(config), before=(None, None), after=after)


@architecture("exaone-moe")
class ExaoneMoe(Decoder):
    """K-EXAONE, with experts chosen by a sigmoid, one of them shared; first layers are dense."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer, with RoPE if it has a window."""
        window = config.window(4)
        rope = self.rope if window else None
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head")
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp)
