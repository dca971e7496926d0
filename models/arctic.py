"""Snowflake Arctic.

Snowflake 2024, "Snowflake Arctic Cookbook": Llama's layer with a dense network, and experts that
read the layer's input beside it, so that their communication overlaps with attention.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


class DenseAndExperts(nn.DecoderLayer):
    """``y = x + attention(norm(x))``, then ``y + mlp(norm(y)) + experts(norm(x))``."""

    mixer_norm: nn.Norm
    mlp_norm: nn.Norm
    experts_norm: nn.Norm

    def __init__(self, config: nn.LayerConfig, mixer: nn.SelfAttention) -> None:
        self.width, self.last, self.mixer = config.width, config.last, mixer
        # The key with a network's width is that of the experts.
        self.mlp, self.experts = nn.MLP(config, inner=config.width), nn.Experts(config)
        names = ("attn_norm", "ffn_norm", "ffn_norm_exps")
        self.mixer_norm, self.mlp_norm, self.experts_norm = map(config.norm, names)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer keeps the output rows only."""
        y = self.mixer.forward(self.mixer_norm(x), batch)
        if self.last:
            x, y = batch.select_outputs(x), batch.select_outputs(y)
        dense = self.mixer.project(y, x)
        dense = self.mlp.forward(self.mlp_norm(dense), dense)
        return self.experts.forward(self.experts_norm(x), dense)


@architecture("arctic")
class Arctic(Decoder):
    """Arctic, with RoPE of adjacent pairs."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of attention, a dense network and experts."""
        return DenseAndExperts(config, nn.SelfAttention(config, self.rope))
