"""MiMo V2 Flash.

Xiaomi 2026, "MiMo-V2-Flash Technical Report", §2: most layers have a window, a sink for every head,
and their own number of heads and RoPE base. Values are narrower than keys, and scaled; experts are
chosen by a sigmoid and a bias.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("mimo2")
class Mimo2(Decoder):
    """MiMo V2 Flash, whose first layer is dense."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with the RoPE for its kind of window."""
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
        """Attend, and scale the result: sums of scaled values are scaled sums."""
        y = super().forward(x, batch)
        return y if self.value_scale == 1 else y.scale(factor=self.value_scale)
