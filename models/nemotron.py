"""Nemotron 4 and Jais 2.

Parmar et al. 2024, "Nemotron-4 15B Technical Report", §2.2: layer norms, squared ReLU without a
gate, half of each head rotated, no biases; norms multiply by one more than their weights, which
files have added. Jais 2 rotates whole heads and has biases.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("nemotron", "jais2")
class Nemotron(Decoder):
    """Biases are those that the file has."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Norms before attention and feed-forward."""
        mlp = nn.MLP(config, "relu2", gated=False)
        return nn.Layer(config, nn.SelfAttention(config, self.rope), mlp)
