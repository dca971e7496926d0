"""Falcon-H1.

Attention and Mamba 2 in parallel in every layer: Zuo et al. 2025, "Falcon-H1: A Family of
Hybrid-Head Language Models", §2. GGUF files have its multipliers in the weights.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.kvcache.layers import LayerCache
from wgpu_backend.nn.model import architecture


class HybridHeads(nn.DecoderLayer):
    """``x += attention(norm(x)) + mamba(norm(x))``, then ``x += mlp(norm(x))``."""

    norm: nn.Norm
    mlp_norm: Tensor = nn.weight("ffn_norm", "width")

    def __init__(self, config: nn.LayerConfig, rope: nn.Rotary | None) -> None:
        self.width, self.last = config.width, config.last
        self.attention = nn.SelfAttention(config, rope)
        self.mamba = nn.Mamba2(config)
        self.mlp = nn.MLP(config)
        self.norm = config.norm("attn_norm")
        self.eps = config.make_norm().eps

    @property
    def cached(self) -> LayerCache:
        """Return the cache entries: keys and values, and states."""
        return self.attention.cached, self.mamba.cached

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer returns the output rows only."""
        normed = self.norm(x)
        y, z = self.attention.forward(normed, batch), self.mamba.forward(normed, batch)
        if self.last:
            x, y, z = batch.select_outputs(x), batch.select_outputs(y), batch.select_outputs(z)
        # Each projection adds a residual in its own kernel: the scan's takes the layer's input, and
        # attention's takes that sum.
        x = self.attention.project(y, self.mamba.project(z, x))
        return self.mlp.forward(x.rms_norm(self.mlp_norm, eps=self.eps), x)


@architecture("falcon-h1")
class FalconH1(Decoder):
    """The Falcon-H1 models."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with attention and scan of the same tokens."""
        return HybridHeads(config, self.rope)
