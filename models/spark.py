"""Spark 2.5.

iFLYTEK 2026, model card: windows in some layers, with fewer or more heads and another RoPE base,
a sigmoid gate for each head (Qiu et al. 2025, "Gated Attention", §2.2), and GELU gates.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("spark2_5")
class Spark(Decoder):
    """Spark 2.5, whose file lists the layers with a window."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with the rotation that fits its window."""
        window = config.listed_window()
        rope = self.local_rope if window else self.rope
        attention = nn.SelfAttention(config, rope, window=window, gate="sigmoid")
        return nn.Layer(config, attention, nn.MLP(config, "gelu"))
