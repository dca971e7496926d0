"""Muse Glimmer.

Meta 2026, model card: gated attention, norms of queries and keys without weights, norms before and
after each block. Three of four layers have a window and RoPE, the fourth has neither. Embeddings
are normalised. Logits are scaled, then capped.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture

# Of norms after attention and feed-forward; the published code has it as a constant.
POST_EPS = 1e-8


@architecture("muse-glimmer")
class Glimmer(Decoder):
    """The language model of Muse Glimmer, with RoPE of adjacent pairs."""

    rope_interleaved = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.logit_scale = backend.config.float("logit_scale", 1.0)

    def embed(self, batch: Batch) -> Tensor:
        """Return normalised embeddings of tokens, and rows of pictures as they are."""
        x = self.token_embedding(batch.tokens)
        x = x.rms_norm(None, eps=self.make_norm(self.config).eps)
        return self.insert_embeddings(x, batch)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with four norms, and with RoPE if it has a window."""
        window = config.window(4)
        rope = self.local_rope if window else None
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head", gate="sigmoid")
        layer = nn.Layer(config, attention, nn.MLP(config))
        layer.mixer_post_norm, layer.mlp_post_norm = (
            nn.weight(name, "width", kind=nn.RMSNorm(POST_EPS), needed=True)
            for name in ("post_attention_norm", "post_ffw_norm")
        )
        return layer
