"""Hunyuan, dense and with experts; Hy 3.

Sun et al. 2024, "Hunyuan-Large", §2.2: a shared expert in addition to those chosen by a softmax;
queries and keys are normalised after their rotation. Hy 3 normalises them before it, and chooses
experts by a sigmoid and a bias; its first layers are dense.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("hunyuan-dense")
class Hunyuan(Decoder):
    """Hunyuan, with norms of queries and keys after the rotation."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with these norms."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head", norm_after_rope=True)
        return nn.Layer(config, attention, self.feed_forward(config))

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Build a SwiGLU network."""
        return nn.MLP(config)


@architecture("hunyuan-moe")
class HunyuanMoe(Hunyuan):
    """Hunyuan with experts."""

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Build experts, with normalised weights from a softmax over all scores."""
        return nn.Experts(config)


@architecture("hy_v3")
class HyV3(Decoder):
    """The Hy 3 models."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with norms of queries and keys before the rotation."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head")
        routing = nn.Routing.from_config(config, "sigmoid")
        # A router tells the layers apart, whether or not the file counts the dense ones.
        experts = "ffn_gate_inp.weight" in config
        return nn.Layer(
            config, attention, nn.Experts(config, routing=routing) if experts else nn.MLP(config)
        )
