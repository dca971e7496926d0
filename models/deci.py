"""Llama-Nemotron Super, Ultra and 51B, DeciLM 7B.

Bercovich et al. 2024, "Puzzle", §2: a search replaces parts of Llama's layers by cheaper ones.
Attention may have fewer heads, be one matrix, or be left out; the feed-forward network may be
narrower, or left out.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


class OneMatrix(nn.Module):
    """A matrix in place of attention, which caches nothing."""

    output: nn.Linear = nn.weight("attn_output", "width", "width")
    cached = None

    def __init__(self, config: nn.LayerConfig) -> None:
        self.width = config.width

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Return the input."""
        return x

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (rows, width) to (rows, width), with the residual added."""
        return self.output(y, residual)


@architecture("deci")
class Deci(Decoder):
    """Llama with other parts in some layers, as the file's lists of heads and widths say."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer without the parts whose size is 0."""
        inner = config.uint("feed_forward_length", at_least=0)
        if not config.uint("attention.head_count"):
            if not inner:
                raise config.fail(f"layer {config.index} has neither attention nor feed-forward")
            return nn.FeedForwardLayer(config, nn.MLP(config), norm="ffn_norm")
        attention = self.mixer(config)
        return (
            nn.Layer(config, attention, nn.MLP(config))
            if inner
            else nn.MixerLayer(config, attention)
        )

    def mixer(self, config: nn.LayerConfig) -> nn.SelfAttention | OneMatrix:
        """Build the attention of a layer, or the matrix in its place."""
        if config.uint("attention.head_count_kv"):
            return nn.SelfAttention(config, self.rope)
        return OneMatrix(config)
