"""StableLM 3B to 12B.

Bellagamba et al. 2024, "Stable LM 2 1.6B Technical Report", §2.2: Llama's layers with layer norms,
and a quarter of each head rotated.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("stablelm")
class StableLM(Decoder):
    """StableLM; the largest model normalises query and key heads and has parallel residuals."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a sequential layer if there are two norms, a parallel one if there is one."""
        qk_norm = "each head" if "attn_q_norm.weight" in config else None
        attention = nn.SelfAttention(config, self.rope, qk_norm=qk_norm)
        # Files have no key for parallel residuals.
        kind = nn.Layer if "ffn_norm.weight" in config else nn.ParallelLayer
        return kind(config, attention, nn.MLP(config))
