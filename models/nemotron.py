"""Nemotron 4 and Jais 2.

Parmar et al. 2024, "Nemotron-4 15B Technical Report", §2.2: layer norms, squared ReLU without a
gate, half of each head rotated, no biases. Norms multiply by one plus their weights; files store
the sum. Jais 2 rotates whole heads and has biases.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("nemotron", "jais2")
class Nemotron(Decoder):
    """Nemotron 4 and Jais 2, with biases where the file has them."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a pre-norm layer of attention and feed-forward."""
        mlp = nn.MLP(config, "relu2", gated=False)
        return nn.Layer(config, nn.SelfAttention(config, self.rope), mlp)
