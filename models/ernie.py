"""ERNIE 4.5.

Baidu 2025, "ERNIE 4.5 Technical Report", §2: Llama, and with experts: chosen by a softmax and a
bias, some shared by all, the first layers without.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("ernie4_5")
class Ernie(Decoder):
    """Neighbours are rotated."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("ernie4_5-moe")
class ErnieMoe(Ernie):
    """Experts in every so many layers after the first."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, with experts or without."""
        step = self.config.uint("interleave_moe_layer_step", 1, at_least=1)
        dense = config.precedes_experts or (config.index + 1) % step
        attention = nn.SelfAttention(config, self.rope)
        return nn.Layer(config, attention, nn.MLP(config) if dense else nn.Experts(config))
