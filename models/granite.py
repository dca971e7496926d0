"""Granite 3, Granite 4 without recurrence, and MiniCPM.

Llama with four factors: IBM 2024, "Granite 3.0 Language Models", §2, after Yang et al. 2022,
"Tensor Programs V" (µP); Hu et al. 2024, "MiniCPM", §3.1 and table 7. Embeddings, what is added to
residuals, scores of attention, and logits are scaled.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("granite", "granitemoe", "granite_swa")
class Granite(Decoder):
    """Granite; with experts, and shared ones, where the file has them."""

    rope_interleaved = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.config.float("embedding_scale", 1.0)
        self.logit_scale = 1 / (self.config.float("logit_scale", 1.0) or 1.0)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, with a factor of what is added to the residual."""
        experts = self.config.uint("expert_count", 0)
        return nn.Layer(
            config,
            nn.SelfAttention(config, self.rope_of(config), window=config.window(4)),
            nn.Experts(config) if experts else nn.MLP(config),
            residual_scale=config.float("residual_scale", 1.0),
        )

    def rope_of(self, config: nn.LayerConfig) -> nn.Rotary | None:
        """Rotation of a layer, unless the file says that there is none."""
        return self.rope if self.config.bool("rope.scaling.finetuned", True) else None


@architecture("minicpm")
class MiniCPM(Granite):
    """Files from before these keys mean the paper's factors."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.config.float("embedding_scale", 12.0)
        self.logit_scale = 1 / self.config.float("logit_scale", self.width / 256)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Granite's."""
        attention, mlp = nn.SelfAttention(config, self.rope), nn.MLP(config)
        scale = config.float("residual_scale", 1.4 * config.count**-0.5)
        return nn.Layer(config, attention, mlp, residual_scale=scale)


@architecture("minicpm3")
class MiniCPM3(Decoder):
    """Latent attention; the paper's factors, which files do not say."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale, self.logit_scale = 12.0, 256 / self.width

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """MiniCPM's."""
        attention, mlp = nn.LatentAttention(config, self.rope), nn.MLP(config)
        return nn.Layer(config, attention, mlp, residual_scale=1.4 * config.count**-0.5)
