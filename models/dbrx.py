"""DBRX.

Databricks 2024, "Introducing DBRX": sixteen fine experts, layer norms without bias, queries, keys
and values bounded; MPT's layers but for rotation and experts.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("dbrx")
class Dbrx(Decoder):
    """Weights of the chosen experts are normalised."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, whose second norm has another name."""
        clamp = config.float("attention.clamp_kqv")
        attention = nn.SelfAttention(config, self.rope, clamp=clamp)
        return nn.Layer(
            config, attention, nn.Experts(config), before=("attn_norm", "attn_output_norm")
        )
