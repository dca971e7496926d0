"""Hunyuan, dense and with experts; Hy 3.

Sun et al. 2024, "Hunyuan-Large", §2.2: an expert that all share beside those that a softmax
chooses; queries and keys are normalised after they are rotated. Hy 3 normalises them before, and
chooses by a sigmoid and a bias, but in the first layers.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("hunyuan-dense")
class Hunyuan(Decoder):
    """Norms of queries and keys come after the rotation."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, with these norms."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head", norm_after_rope=True)
        return nn.Layer(config, attention, self.feed_forward(config))

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """SwiGLU."""
        return nn.MLP(config)


@architecture("hunyuan-moe")
class HunyuanMoe(Hunyuan):
    """Experts."""

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Softmax over all experts, weights normalised."""
        return nn.Experts(config)


@architecture("hy_v3")
class HyV3(Decoder):
    """Hy 3."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Norms of queries and keys come before the rotation."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head")
        routing = nn.Routing.from_config(config, "sigmoid")
        experts = "ffn_gate_inp.weight" in config
        return nn.Layer(
            config, attention, nn.Experts(config, routing=routing) if experts else nn.MLP(config)
        )
