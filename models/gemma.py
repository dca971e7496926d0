"""Gemma 1 to 3, EmbeddingGemma.

Gemma Team 2024, "Gemma", §2: Llama with GeGLU, wide heads, embeddings times the root of the width,
tied to the output; norms multiply by one more than their weights, which files have added. Gemma
Team 2024, "Gemma 2", §2: a window in every second layer, bounded scores and logits, norms of
results, too. Gemma Team 2025, "Gemma 3 Technical Report", §2: five layers with a window to one
without, each kind with a rotation of its own, and norms of queries and keys in place of bounds.
Vera et al. 2025, "EmbeddingGemma", §2: the same layers, whose tokens see ahead as far as back.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.encoder import Encoder
from wgpu_backend.nn.model import architecture

AFTER = ("post_attention_norm", "post_ffw_norm")


@architecture("gemma")
class Gemma(Decoder):
    """Halves are rotated."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.width**0.5

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, with GeGLU."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config, "gelu"))


@architecture("gemma2")
class Gemma2(Gemma):
    """The largest scales scores by the width of a head that its heads have not."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Norms before and behind."""
        attention = nn.SelfAttention(
            config,
            self.rope,
            window=config.window(2),
            softcap=config.float("attn_logit_softcapping", 50.0),
            scale=self.score_scale(config, 46),
        )
        return nn.Layer(config, attention, nn.MLP(config, "gelu"), after=AFTER)

    def score_scale(self, config: nn.LayerConfig, largest: int) -> float | None:
        """Factor of scores; files do not say that of the model with the most layers."""
        if "attention.scale" in self.config:
            return None
        heads = config.uint("attention.head_count", at_least=1)
        return (self.width // heads) ** -0.5 if config.count == largest else None


@architecture("gemma3")
class Gemma3(Gemma2):
    """Layers with a window rotate by a base of their own and are not stretched."""

    local_base = 10000.0  # files from before its key mean the paper's

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Norms before and behind, and of queries and keys."""
        window = config.window(6)
        attention = nn.SelfAttention(
            config,
            self.local_rope if window else self.rope,
            window=window,
            softcap=config.float("attn_logit_softcapping", 0.0),
            scale=self.score_scale(config, 62),
            qk_norm="head",
        )
        return nn.Layer(config, attention, nn.MLP(config, "gelu"), after=AFTER)


@architecture("gemma-embedding")
class GemmaEmbedding(Encoder):
    """Gemma 3's layers; half of a window is on either side."""

    local_base = 10000.0

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.width**0.5

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Norms before and behind, and of queries and keys."""
        window = config.window(6)
        attention = nn.SelfAttention(
            config,
            self.local_rope if window else self.rope,
            causal=False,
            symmetric_window=window,
            qk_norm="head",
        )
        return nn.Layer(config, attention, nn.MLP(config, "gelu"), after=AFTER)
