"""Trinity (AFMoE).

Arcee AI 2025, "Trinity", §2: gated attention, norms of queries and keys, norms before and after
each block. Three of four layers have a window and RoPE, the fourth has neither. Experts are chosen
by a sigmoid and a bias, with one shared expert; the first layers are dense. Embeddings are scaled
by the root of the width (Yang et al. 2022, "Tensor Programs V").
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("afmoe")
class Afmoe(Decoder):
    """Trinity, whose gates are all sigmoids."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.width**0.5

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with four norms, and with RoPE if it has a window."""
        window = config.window(4)
        # Full attention without positions generalises to lengths beyond those of training:
        # Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization in
        # Transformers".
        rope = self.rope if window else None
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head", gate="sigmoid")
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp, after=("post_attention_norm", "post_ffw_norm"))
