"""Jamba.

Mamba, with attention in a few layers and experts in every other: Lieber et al. 2024, "Jamba: A
Hybrid Transformer-Mamba Language Model", §2.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("jamba")
class Jamba(Decoder):
    """Jamba: layers without KV heads scan; attention has no positions."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of scan or attention, with experts if it has a router."""
        attends = config.uint("attention.head_count_kv")
        # The scan already orders tokens, so that attention needs no positions (Jamba, §6.5).
        mixer = nn.SelfAttention(config, None) if attends else nn.Mamba(config)
        return nn.Layer(config, mixer, self._feed_forward(config))

    def _feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        if "ffn_gate_inp.weight" not in config:
            return nn.MLP(config)
        return nn.Experts(config, routing=nn.Routing.from_config(config, normalised=False))
