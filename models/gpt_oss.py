"""gpt-oss.

OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", §2: a window in every second layer, a sink for
every head, biases; four experts per token, weighed by a softmax over their own scores, with a
bounded SwiGLU.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("gpt-oss")
class GptOss(Decoder):
    """gpt-oss, with RoPE of the two halves of a head, and YaRN."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, with another name for the second norm."""
        attention = nn.SelfAttention(config, self.rope, window=config.window(2))
        routing = nn.Routing.from_config(config, "softmax of chosen")
        swiglu = nn.BoundedSwiglu(
            # Files without the keys take the values of the published code.
            config.float("swiglu_alpha", 1.702),
            config.float("swiglu_limit", 7.0),
        )
        experts = nn.Experts(config, swiglu, routing)
        return nn.Layer(config, attention, experts, before=("attn_norm", "post_attention_norm"))
