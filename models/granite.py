"""Granite 3, Granite 4 without recurrence, and MiniCPM.

Llama with four factors: IBM 2024, "Granite 3.0 Language Models", §2, after Yang et al. 2022,
"Tensor Programs V" (µP); Hu et al. 2024, "MiniCPM", §3.1 and table 7. They scale embeddings,
residual branches, attention scores and logits.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("granite", "granitemoe", "granite_swa")
class Granite(Decoder):
    """Granite, with experts and shared experts where the file has them."""

    # Converters permute rows of queries and keys as they do for Llama.
    rope_interleaved = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.config.float("embedding_scale", 1.0)
        # Files have the divisor, and 0 if there is none.
        self.logit_scale = 1 / (self.config.float("logit_scale", 1.0) or 1.0)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with scaled residual branches."""
        experts = self.config.uint("expert_count", 0)
        return nn.Layer(
            config,
            nn.SelfAttention(config, self.choose_rope(config), window=config.window(4)),
            nn.Experts(config) if experts else nn.MLP(config),
            residual_scale=config.float("residual_scale", 1.0),
        )

    def choose_rope(self, config: nn.LayerConfig) -> nn.Rotary | None:
        """Return the rotation of a layer, or None if the file disables it."""
        return self.rope if self.config.bool("rope.scaling.finetuned", True) else None


@architecture("minicpm")
class MiniCPM(Granite):
    """MiniCPM; older files lack the keys and take the paper's factors."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        # The paper's `scale_emb`, and its `dim_model_base` of 256 below.
        self.embedding_scale = self.config.float("embedding_scale", 12.0)
        self.logit_scale = 1 / self.config.float("logit_scale", self.width / 256)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Granite's layer."""
        attention, mlp = nn.SelfAttention(config, self.rope), nn.MLP(config)
        # The paper's `scale_depth` of 1.4 by the root of the number of layers.
        scale = config.float("residual_scale", 1.4 * config.count**-0.5)
        return nn.Layer(config, attention, mlp, residual_scale=scale)


@architecture("minicpm3")
class MiniCPM3(Decoder):
    """MiniCPM 3 with latent attention, and the paper's factors, which files lack."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        # `scale_emb` and `dim_model_base`; below, `scale_depth` by the root of the layers.
        self.embedding_scale, self.logit_scale = 12.0, 256 / self.width

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build MiniCPM's layer with latent attention."""
        attention, mlp = nn.LatentAttention(config, self.rope), nn.MLP(config)
        return nn.Layer(config, attention, mlp, residual_scale=1.4 * config.count**-0.5)
