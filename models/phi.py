"""Phi 1 to 4, Phi-3.5 with experts.

Li et al. 2023, "Textbooks Are All You Need II", §2; Phi-2 is larger. Abdin et al. 2024, "Phi-3
Technical Report", §2: Llama's layers with fused matrices, and LongRoPE for long contexts.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("phi2")
class Phi2(Decoder):
    """Phi 1 and 2, with layer norms, biases, GELU and partial RoPE."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with attention and feed-forward in parallel after one norm."""
        attention = nn.SelfAttention(config, self.rope)
        return nn.ParallelLayer(config, attention, nn.MLP(config, "gelu", gated=False))


@architecture("phi3")
class Phi3(Decoder):
    """Phi 3 and 4, with fused QKV matrices, and gate and projection in one."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("phimoe")
class PhiMoe(Decoder):
    """Phi-3.5 with experts, two per token, layer norms and biases."""

    norm = nn.LayerNorm

    @classmethod
    def make_norm(cls, config: Config) -> nn.Norm:
        """Make a layer norm whose epsilon is stored under RMSNorm's key."""
        return nn.LayerNorm(nn.RMSNorm.from_config(config).eps)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with experts."""
        experts = nn.Experts(config, routing=SparseMixer.from_config(config))
        return nn.Layer(config, nn.SelfAttention(config, self.rope), experts)


class SparseMixer(nn.Routing):
    """The routing of Liu et al. 2023, "Sparse Backpropagation for MoE Training", algorithm 1.

    The training's noise is left out. Each of two experts is the best remaining one. Its weight is
    that of a softmax over experts of nearly the same score, so both may sum to more than 1.
    """

    # Share of a score by which others may be less and still count: twice the training's noise.
    # The `router_jitter_noise` of the published configuration is 0.01.
    MARGIN = 0.02

    def choose(self, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token and their weights; see `nn.Routing.choose`."""
        ids = logits.top_k(self.used)
        return ids, logits.sparse_mixer(ids, margin=self.MARGIN)
