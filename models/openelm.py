"""OpenELM.

Mehta et al. 2024, "OpenELM", §2.1: the number of heads and the width of the feed-forward network
grow from layer to layer. Queries and keys of every head are normalised.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("openelm")
class OpenElm(Decoder):
    """OpenELM 270M to 3B."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with the layer's own sizes."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head")
        return nn.Layer(config, attention, nn.MLP(config))
