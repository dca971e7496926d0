"""Mamba, Falcon Mamba and Mamba 2.

Only state spaces, without attention: Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with
Selective State Spaces", §3.4; Zuo et al. 2024, "Falcon Mamba", §2; Dao & Gu 2024, "Transformers are
SSMs", §7.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("mamba")
class Mamba(Decoder):
    """Mamba, and Falcon Mamba, which normalises the selected parameters."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of a scan with a residual."""
        return nn.MixerLayer(config, nn.Mamba(config))

    def fit_context(self, positions: int) -> None:
        """Do nothing: a recurrent network has no positions."""


@architecture("mamba2")
class Mamba2(Mamba):
    """The Mamba 2 models."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of a scan of heads with a residual."""
        return nn.MixerLayer(config, nn.Mamba2(config))
