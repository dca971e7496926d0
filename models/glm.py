"""ChatGLM 3, GLM 4 to 4.6, Solar Open.

GLM Team 2024, "ChatGLM", §2: half of each head rotated, biases of queries, keys and values, gate
and projection in one matrix. GLM-4-0414 adds norms after each block. GLM-4.5 Team 2025, "GLM-4.5",
§2.1: experts chosen by a sigmoid and a bias, one of them shared; the first layers are dense.
"""

from __future__ import annotations

from typing import Any

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("chatglm")
class ChatGLM(Decoder):
    """ChatGLM 3 and GLM 4, with RoPE of adjacent pairs."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("glm4")
class GLM4(ChatGLM):
    """GLM-4-0414, with four norms a layer, and GLM-4.1V, which rotates by several positions."""

    sectioning = "blocks"

    def make_rope(self, *, stretched: bool = True, **changes: Any) -> nn.Rotary:  # noqa: ANN401
        """Make the rotation; files of GLM-4.1V have the halves of a head's pairs apart."""
        if "rope.dimension_sections" in self.config:
            changes["interleaved"] = False
        return super().make_rope(stretched=stretched, **changes)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with norms before and after attention and feed-forward."""
        attention, mlp = nn.SelfAttention(config, self.rope), nn.MLP(config)
        return nn.Layer(config, attention, mlp, after=("post_attention_norm", "post_ffw_norm"))


@architecture("glm4moe")
class GLM4Moe(Decoder):
    """GLM 4.5 and 4.5V, with RoPE of halves; the larger models normalise queries and keys."""

    sectioning = "blocks"

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, with another name for the second norm."""
        qk_norm = "head" if "attn_q_norm.weight" in config else None
        attention = nn.SelfAttention(config, self.rope, qk_norm=qk_norm)
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp, before=("attn_norm", "post_attention_norm"))
