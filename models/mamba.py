"""Mamba, Falcon Mamba and Mamba 2.

State spaces and nothing else: Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective
State Spaces", §3.4; Zuo et al. 2024, "Falcon Mamba", §2; Dao & Gu 2024, "Transformers are SSMs",
§7.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("mamba")
class Mamba(Decoder):
    """Mamba, and Falcon Mamba, which normalises what a token selects."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """A scan beside the residual."""
        return nn.MixerLayer(config, nn.Mamba(config))

    def fit_context(self, positions: int) -> None:
        """Take any number of positions: a recurrent network does not count them."""


@architecture("mamba2")
class Mamba2(Mamba):
    """Mamba 2."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """A scan of heads beside the residual."""
        return nn.MixerLayer(config, nn.Mamba2(config))
