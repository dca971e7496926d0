"""LFM2, dense and with experts.

Short convolutions, and attention in a few layers: Liquid AI 2025, "LFM2 Technical Report", §2.1.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("lfm2", "lfm2moe")
class Lfm2(Decoder):
    """LFM2: layers without KV heads convolve; layers after the leading ones may have experts."""

    # Published code calls the last norm `embedding_norm`, and converters kept that name.
    output_norm_name = "token_embd_norm"

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of a convolution, or of attention with norms of query and key heads."""
        return nn.Layer(config, self._mixer(config), self._feed_forward(config))

    def _mixer(self, config: nn.LayerConfig) -> nn.Mixer:
        # The number of KV heads is listed by layer, with 0 for convolutions.
        if not config.uint("attention.head_count_kv"):
            return nn.ShortConv(config)
        return nn.SelfAttention(config, self.rope, qk_norm="head")

    def _feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        if "ffn_gate_inp.weight" not in config:
            return nn.MLP(config)
        return nn.Experts(config, routing=nn.Routing.from_config(config, "sigmoid"))
