"""Ling and Ring 1 to 2.

Ling Team 2025, "Every FLOP Counts", §2.1: Llama's attention; every layer has experts chosen by a
softmax, and shared ones. Ling Team 2025, "Every Activation Boosted", §2: norms of every query and
key head, partial RoPE, and experts chosen by a sigmoid, a bias and groups, after a dense layer.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture

from .dots import Dots1


@architecture("bailingmoe")
class Ling(Decoder):
    """Ling Lite and Plus 1 and 1.5, with RoPE of adjacent pairs."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with experts."""
        routing = nn.Routing.from_config(config, normalised=False)
        attention = nn.SelfAttention(config, self.rope)
        return nn.Layer(config, attention, nn.Experts(config, routing=routing))


@architecture("bailingmoe2")
class Ling2(Dots1):
    """Ling and Ring Mini, Flash and 1T 2.0: dots.llm1's layers; the file has the groups."""
