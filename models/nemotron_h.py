"""Nemotron-H and Nemotron 3 Nano.

Each layer is a scan, attention, or a feed-forward network: NVIDIA 2025, "Nemotron-H: A Family of
Accurate and Efficient Hybrid Mamba-Transformer Models", §2; with experts "Nemotron 3 Nano", §2.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("nemotron_h", "nemotron_h_moe")
class NemotronH(Decoder):
    """Nemotron-H: the KV heads and feed-forward length of a layer decide which part it is."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of attention without positions, squared ReLUs, or a scan."""
        if config.uint("attention.head_count_kv"):
            # Scans order the tokens, so that attention needs no positions.
            return nn.MixerLayer(config, nn.SelfAttention(config, None))
        if config.uint("feed_forward_length"):
            return nn.FeedForwardLayer(config, self._feed_forward(config))
        return nn.MixerLayer(config, nn.Mamba2(config))

    def _feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        if "ffn_gate_inp.weight" not in config:
            return nn.MLP(config, "relu2", gated=False)
        if "ffn_latent_down.weight" in config:
            raise config.fail("experts of compressed tokens (ffn_latent_down) are not supported")
        return nn.Experts(
            config, "relu2", nn.Routing.from_config(config, "sigmoid"), is_gated=False
        )
