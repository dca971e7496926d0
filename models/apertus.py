"""Apertus.

Apertus Team 2025, "Apertus", §2.1: norms of queries and keys, and xIELU without a gate, from Huang
& Schlag 2025, "Deriving Activation Functions Using Integration", §4.
"""

from __future__ import annotations

import math

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("apertus")
class Apertus(Decoder):
    """Apertus, with RoPE of a head's halves, scaled by Llama 3's factors."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with an activation of its own."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head")
        return nn.Layer(config, attention, nn.MLP(config, XIELU(config), gated=False))


class XIELU:
    """``positive x² + beta x`` above 0, and ``negative (exp(x) - 1 - x) + beta x`` below."""

    def __init__(self, config: nn.LayerConfig) -> None:
        self.beta = config.float("xielu.beta")
        # Stored as trained: a softplus keeps them above 0, and above beta.
        positive, negative = config.float("xielu.alpha_p"), config.float("xielu.alpha_n")
        self.positive = math.log1p(math.exp(positive))
        self.negative = math.log1p(math.exp(negative)) + self.beta

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the activation to (..., cols)."""
        # Each half is 0 on the other side of 0, so both are computed for all values and added. The
        # exponential is of values up to 0 and cannot overflow.
        above = x.relu()
        below = x - above
        curved = (below.exp() - 1.0 - below) * self.negative
        return above.sqr() * self.positive + curved + x * self.beta
