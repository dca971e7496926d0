"""ERNIE 4.5.

Baidu 2025, "ERNIE 4.5 Technical Report", §2: Llama, dense or with experts. These are chosen by a
softmax and a bias, some are shared; the first layers are dense.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("ernie4_5")
class Ernie(Decoder):
    """ERNIE 4.5, with RoPE of adjacent pairs."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("ernie4_5-moe")
class ErnieMoe(Ernie):
    """ERNIE 4.5 with experts in every n-th layer after the first ones."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, with or without experts."""
        step = self.config.uint("interleave_moe_layer_step", 1, at_least=1)
        # The last of so many layers has the experts, as `moe_layer_interval` counts in the
        # published code.
        dense = config.precedes_experts or (config.index + 1) % step
        attention = nn.SelfAttention(config, self.rope)
        return nn.Layer(config, attention, nn.MLP(config) if dense else nn.Experts(config))
