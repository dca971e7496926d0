"""DBRX.

Databricks 2024, "Introducing DBRX": sixteen fine-grained experts, layer norms without bias, clamped
queries, keys and values; MPT's layers with RoPE and experts.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("dbrx")
class Dbrx(Decoder):
    """DBRX, whose expert weights are normalised."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, with another name for the second norm."""
        clamp = config.float("attention.clamp_kqv")
        attention = nn.SelfAttention(config, self.rope, clamp=clamp)
        return nn.Layer(
            config, attention, nn.Experts(config), before=("attn_norm", "attn_output_norm")
        )
