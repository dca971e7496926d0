"""Mixer of neighbours alone: a gated short convolution."""

from __future__ import annotations

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import StateShape
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import Filter, Linear
from wgpu_backend.nn.module import Module, weight


class ShortConv(Module):
    """``c * conv(b * x)`` of three projections (Liquid AI 2025, "LFM2 Technical Report", §2.1).

    Parameters
    ----------
    config : LayerConfig
    """

    expand: Linear = weight("shortconv.in_proj", "expanded", "width")
    conv: Filter = weight("shortconv.conv", "width", "taps")
    output: Linear = weight("shortconv.out_proj", "width", "width")

    def __init__(self, config: LayerConfig) -> None:
        self.layer, self.width = config.index, config.width
        self.taps = config.uint("shortconv.l_cache", at_least=2)
        self.expanded = 3 * self.width

    @property
    def cached(self) -> StateShape:
        """Last values of the convolution."""
        return StateShape(conv=(self.taps - 1, self.width))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Convolve: (tokens, width) to the same, for `project`."""
        b, c, x = self.expand(x).chunk(-1, self.width)
        state = batch.state(self.layer, "conv")
        return b.mul(x).short_conv(self.conv.weight, state.rows, state.runs, self.conv.bias).mul(c)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map what `forward` gives to (tokens, width), and add `residual`."""
        return self.output(y, residual)
