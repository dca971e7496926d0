"""Gemma 1 to 3, EmbeddingGemma.

Gemma Team 2024, "Gemma", §2: Llama with GeGLU, wide heads, and tied embeddings times the root of
the width. Norms multiply by one plus their weights; files store the sum. Gemma Team 2024, "Gemma
2", §2: a window in every second layer, soft-capped scores and logits, norms before and after each
block. Gemma Team 2025, "Gemma 3 Technical Report", §2: five layers with a window for one without,
each kind with its own RoPE base, and norms of queries and keys instead of soft caps. Vera et al.
2025, "EmbeddingGemma", §2: the same layers with bidirectional attention.
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
    """Gemma, with RoPE of a head's halves."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.width**0.5

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with GeGLU."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config, "gelu"))


@architecture("gemma2")
class Gemma2(Gemma):
    """Gemma 2; the largest model scales scores by a width other than that of its heads."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with norms before and after each block."""
        attention = nn.SelfAttention(
            config,
            self.rope,
            window=config.window(2),
            # The paper's value, for files without the key.
            softcap=config.float("attn_logit_softcapping", 50.0),
            # No key has a model's size, but only 27B has 46 layers.
            scale=self.score_scale(config, 46),
        )
        return nn.Layer(config, attention, nn.MLP(config, "gelu"), after=AFTER)

    def score_scale(self, config: nn.LayerConfig, largest: int) -> float | None:
        """Return the factor of scores; files lack that of the model with the most layers."""
        # `SelfAttention` reads the key itself.
        if "attention.scale" in self.config:
            return None
        heads = config.uint("attention.head_count", at_least=1)
        # The published scale of 27B models is that of the width by the heads, 144 or 168, not that
        # of a head, 128.
        return (self.width // heads) ** -0.5 if config.count == largest else None


@architecture("gemma3")
class Gemma3(Gemma2):
    """Gemma 3, whose layers with a window have their own RoPE base, without scaling."""

    # Older files lack the key; the paper has this value.
    local_base = 10000.0

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Gemma 2's layer with norms of queries and keys."""
        window = config.window(6)
        attention = nn.SelfAttention(
            config,
            self.local_rope if window else self.rope,
            window=window,
            softcap=config.float("attn_logit_softcapping", 0.0),
            # As for Gemma 2: only 27B has 62 layers.
            scale=self.score_scale(config, 62),
            qk_norm="head",
        )
        return nn.Layer(config, attention, nn.MLP(config, "gelu"), after=AFTER)


@architecture("gemma-embedding")
class GemmaEmbedding(Encoder):
    """EmbeddingGemma: Gemma 3's layers with half of the window on either side."""

    local_base = 10000.0

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.embedding_scale = self.width**0.5

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Gemma 2's layer with norms of queries and keys, not causal."""
        window = config.window(6)
        attention = nn.SelfAttention(
            config,
            self.local_rope if window else self.rope,
            causal=False,
            symmetric_window=window,
            qk_norm="head",
        )
        return nn.Layer(config, attention, nn.MLP(config, "gelu"), after=AFTER)
