"""Command R, R+ and R7B, Aya.

Cohere 2024, model cards of Command R: attention and feed-forward in parallel after one layer norm
without bias, tied embeddings, and a factor of the logits. R+ normalises each head of queries and
keys. Cohere 2025, "Command A", §2: three of four layers have a window and RoPE, the fourth has
neither.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.backend import Backend
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("command-r")
class CommandR(Decoder):
    """Command R, with RoPE of adjacent pairs."""

    norm = nn.LayerNorm
    rope_interleaved = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        # 0 stands for no scale, as in llama.cpp.
        self.logit_scale = self.config.float("logit_scale", 1.0) or 1.0

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with attention and feed-forward in parallel."""
        # Only R+ has these norms.
        qk_norm = "each head" if "attn_q_norm.weight" in config else None
        attention = nn.SelfAttention(config, self.rope, qk_norm=qk_norm)
        return nn.ParallelLayer(config, attention, nn.MLP(config))


@architecture("cohere2")
class Cohere2(CommandR):
    """Command R7B, with windows, and layers without positions."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with attention and feed-forward in parallel."""
        window = config.window(4)
        attention = nn.SelfAttention(config, self.rope if window else None, window=window)
        return nn.ParallelLayer(config, attention, nn.MLP(config))


@architecture("cohere2moe")
class Cohere2Moe(Cohere2):
    """Command A with experts; its first layers have no experts, and always use RoPE."""

    @classmethod
    def make_norm(cls, config: Config) -> nn.Norm:
        """Make a norm of the kind whose epsilon the file has."""
        kind = nn.RMSNorm if nn.RMSNorm.eps_key in config else nn.LayerNorm
        return kind.from_config(config)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with attention and experts in parallel."""
        window = config.window(4, first=True)
        rope = self.rope if window or config.precedes_experts else None
        attention = nn.SelfAttention(config, rope, window=window)
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.ParallelLayer(config, attention, mlp)
