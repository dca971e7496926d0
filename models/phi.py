"""Phi 1 to 4, Phi-3.5 with experts.

Li et al. 2023, "Textbooks Are All You Need II", §2; Phi-2 is larger. Abdin et al. 2024, "Phi-3
Technical Report", §2, turns to Llama's layers, in fewer matrices; LongRoPE stretches contexts.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("phi2")
class Phi2(Decoder):
    """Layer norms, biases, GELU, and a part of each head rotated."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Attention and feed-forward side by side behind one norm."""
        attention = nn.SelfAttention(config, self.rope)
        return nn.ParallelLayer(config, attention, nn.MLP(config, "gelu", gated=False))


@architecture("phi3")
class Phi3(Decoder):
    """Queries, keys and values have one matrix, gate and projection another."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("phimoe")
class PhiMoe(Decoder):
    """Layer norms, biases, and two of the experts for a token."""

    norm = nn.LayerNorm

    @classmethod
    def make_norm(cls, config: Config) -> nn.Norm:
        """Layer norm, whose epsilon stands under the other norm's key."""
        return nn.LayerNorm(nn.RMSNorm.from_config(config).eps)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, with experts."""
        experts = nn.Experts(config, routing=SparseMixer.from_config(config))
        return nn.Layer(config, nn.SelfAttention(config, self.rope), experts)


class SparseMixer(nn.Routing):
    """Liu et al. 2023, "Sparse Backpropagation for MoE Training", algorithm 1, without the noise.

    Each of two experts is the best that is left; it weighs as much as a softmax over those of
    nearly its score gives it, so the two together may weigh more than 1.
    """

    MARGIN = 0.02  # of a score, by which others may be less to count; twice the training's noise

    def choose(self, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Experts of each token and their weights; see `nn.Routing.choose`."""
        ids = logits.top_k(self.used)
        return ids, logits.sparse_mixer(ids, margin=self.MARGIN)
