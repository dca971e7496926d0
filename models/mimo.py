"""MiMo V2 Flash.

Xiaomi 2026, "MiMo-V2-Flash Technical Report", §2: a window and a sink for every head in most
layers, with heads of their own number and a rotation of its own; values narrower than keys, and
scaled; experts chosen by a sigmoid and a bias.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("mimo2")
class Mimo2(Decoder):
    """The first layer has no experts."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Rotated as suits the window."""
        window = config.window(0)
        attention = ScaledAttention(config, self.local_rope if window else self.rope, window)
        experts = "ffn_gate_inp.weight" in config
        routing = nn.Routing.from_config(config, "sigmoid")
        mlp = nn.Experts(config, routing=routing) if experts else nn.MLP(config)
        return nn.Layer(config, attention, mlp)


class ScaledAttention(nn.SelfAttention):
    """Attention whose values are scaled."""

    def __init__(self, config: nn.LayerConfig, rope: nn.Rotary, window: int) -> None:
        super().__init__(config, rope, window=window)
        self.value_scale = config.float("attention.value_scale", 1.0)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Attend; sums of scaled values are scaled sums."""
        y = super().forward(x, batch)
        return y if self.value_scale == 1 else y.scale(factor=self.value_scale)
