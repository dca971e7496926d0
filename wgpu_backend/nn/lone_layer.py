"""Layers of one part: a mixer, or a feed-forward network."""

from __future__ import annotations

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.layer import DecoderLayer, FeedForward, Mixer
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import Norm


class MixerLayer(DecoderLayer):
    """``x += mixer(norm(x))``, and no feed-forward.

    Parameters
    ----------
    config : LayerConfig
    mixer : Mixer
    """

    norm: Norm

    def __init__(self, config: LayerConfig, mixer: Mixer) -> None:
        self.width, self.last, self.mixer = config.width, config.last, mixer
        self.norm = config.norm("attn_norm")

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """(tokens, width) to the same; of the last layer only the wanted rows."""
        y = self.mixer.forward(self.norm(x), batch)
        if self.last:
            x, y = batch.select_outputs(x), batch.select_outputs(y)
        return self.mixer.project(y, x)


class FeedForwardLayer(DecoderLayer):
    """``x += mlp(norm(x))``: it mixes no tokens and keeps nothing.

    Parameters
    ----------
    config : LayerConfig
    mlp : FeedForward
    """

    norm: Norm

    def __init__(self, config: LayerConfig, mlp: FeedForward) -> None:
        self.width, self.last, self.mlp = config.width, config.last, mlp
        self.norm = config.norm("attn_norm")

    @property
    def cached(self) -> None:
        """Nothing."""
        return None

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """(tokens, width) to the same; of the last layer only the wanted rows."""
        if self.last:
            x = batch.select_outputs(x)
        return self.mlp.forward(self.norm(x), x)
