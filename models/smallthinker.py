"""SmallThinker.

Song et al. 2025, "SmallThinker", §2: the router reads the input of the layer, before attention, so
that experts can be fetched from storage meanwhile. Experts have ReLU gates. The first of four
layers sees the whole context without positions, the others have a window and RoPE.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


class EarlyRouter(nn.DecoderLayer):
    """Llama's layer with experts that are chosen by the layer's input."""

    mixer_norm: nn.Norm
    mlp_norm: nn.Norm

    def __init__(
        self, config: nn.LayerConfig, mixer: nn.SelfAttention, experts: nn.Experts
    ) -> None:
        self.width, self.last = config.width, config.last
        self.mixer, self.experts = mixer, experts
        self.mixer_norm, self.mlp_norm = map(config.norm, ("attn_norm", "ffn_norm"))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer keeps the output rows only."""
        y = self.mixer.forward(self.mixer_norm(x), batch)
        if self.last:
            x, y = batch.select_outputs(x), batch.select_outputs(y)
        ids, weights = self.experts.routing.choose(self.experts.router(x))
        x = self.mixer.project(y, x)
        return x.add(self.experts.chosen(self.mlp_norm(x), ids, weights))


@architecture("smallthinker")
class SmallThinker(Decoder):
    """SmallThinker 4B and 21B."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer, with RoPE if it has a window or if no layer has one."""
        window = config.window(4, first=True)
        everywhere = not self.config.uint("attention.sliding_window", 0)
        rope = self.rope if window or everywhere else None
        attention = nn.SelfAttention(config, rope, window=window)
        return EarlyRouter(config, attention, nn.Experts(config, "relu"))
