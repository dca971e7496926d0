"""Make a rotation of whole heads; the file's size is for latent attention, and unused here.

Both choose experts by a sigmoid. Huo et al. 2025, "dots.llm1 Technical Report", §2: Qwen3's
attention, and experts as in DeepSeek-V3, some of them shared; the first layers are dense. MiniMax
2025, model card of M2: norms over all queries and all keys, partial RoPE, no shared experts.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("dots1")
class Dots1(Decoder):
    """dots.llm1, with norms of every query and key head."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, with experts after the first layers."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head")
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp)


@architecture("minimax-m2")
class MiniMaxM2(Decoder):
    """MiniMax M2, with experts in every layer."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with experts."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="all heads")
        routing = nn.Routing.from_config(config, "sigmoid")
        return nn.Layer(config, attention, nn.Experts(config, routing=routing))
