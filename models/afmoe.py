"""Trinity (AFMoE).

Arcee AI 2025, "Trinity", §2: attention behind a gate, norms of queries and keys, norms before and
behind each block; three of four layers have a window and rotate, the fourth does not; experts
chosen by a sigmoid and a bias, one that all share, the first layers without. Embeddings are scaled
by the root of the width (Yang et al. 2022, "Tensor Programs V").
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("afmoe")
class Afmoe(Decoder):
    """Every weight of a gate is a sigmoid's."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.width**0.5

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Four norms; rotated where there is a window."""
        window = config.window(4)
        rope = self.rope if window else None
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head", gate="sigmoid")
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp, after=("post_attention_norm", "post_ffw_norm"))
