"""OLMo 1 to 3 and OLMoE.

Groeneveld et al. 2024, "OLMo: Accelerating the Science of Language Models", §2.1: Llama with layer
norms without weights, and clamped queries, keys and values. Muennighoff et al. 2024, "OLMoE", §2:
experts, and norms over all queries and all keys. OLMo Team 2024, "2 OLMo 2 Furious", §3.2: norms
after each block instead of before. OLMo 3 has windows in three of four layers, and YaRN in the
fourth.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("olmo")
class Olmo(Decoder):
    """OLMo, with RoPE of adjacent pairs and no biases."""

    # Its norms have no weights, so that files have none to load.
    norm = nn.PlainLayerNorm
    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with clamping."""
        clamp = config.float("attention.clamp_kqv", 0.0)
        return nn.Layer(config, nn.SelfAttention(config, self.rope, clamp=clamp), nn.MLP(config))


@architecture("olmoe")
class OlmoE(Decoder):
    """OLMoE, whose expert weights are not normalised after the softmax."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a pre-norm layer of attention and experts."""
        clamp = config.float("attention.clamp_kqv", 0.0)
        attention = nn.SelfAttention(
            config, self.rope, qk_norm="all heads", clamp=clamp, clamps_normed=True
        )
        routing = nn.Routing.from_config(config, normalised=False)
        return nn.Layer(config, attention, nn.Experts(config, routing=routing))


@architecture("olmo2")
class Olmo2(Decoder):
    """OLMo 2, and OLMo 3 where the file has a window."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with norms after attention and feed-forward."""
        window = config.window(4)
        rope = self.local_rope if window else self.rope
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="all heads")
        after = ("post_attention_norm", "post_ffw_norm")
        return nn.Layer(config, attention, nn.MLP(config), before=(None, None), after=after)
