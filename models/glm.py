"""ChatGLM 3, GLM 4 to 4.6, Solar Open.

GLM Team 2024, "ChatGLM", §2: half of each head rotated, biases of queries, keys and values, gate
and projection in one matrix. GLM-4-0414 normalises results, too. GLM-4.5 Team 2025, "GLM-4.5",
§2.1: experts chosen by a sigmoid and a bias, one that all share, the first layers without.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("chatglm")
class ChatGLM(Decoder):
    """Neighbours are rotated."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("glm4")
class GLM4(ChatGLM):
    """Four norms a layer."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Norms before and behind attention and feed-forward."""
        attention, mlp = nn.SelfAttention(config, self.rope), nn.MLP(config)
        return nn.Layer(config, attention, mlp, after=("post_attention_norm", "post_ffw_norm"))


@architecture("glm4moe")
class GLM4Moe(Decoder):
    """Halves are rotated; the larger ones normalise queries and keys."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, whose second norm has another name."""
        qk_norm = "head" if "attn_q_norm.weight" in config else None
        attention = nn.SelfAttention(config, self.rope, qk_norm=qk_norm)
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp, before=("attn_norm", "post_attention_norm"))
