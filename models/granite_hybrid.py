"""Granite 4 with recurrence, and Bamba.

Mamba 2, with attention in a few layers, and experts in some models: IBM 2025, "Granite 4.0 Language
Models"; IBM et al. 2024, "Bamba: Inference-Efficient Hybrid Mamba2 Model".
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.model import architecture

from .granite import Granite


@architecture("granitehybrid")
class GraniteHybrid(Granite):
    """Granite 4 and Bamba: layers without KV heads scan; Bamba's attention has RoPE."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of scan or attention, with experts or one feed-forward network."""
        attends = config.uint("attention.head_count_kv")
        rotates = self.config.bool("rope.scaling.finetuned", False)
        rope = self.rope if rotates else None
        mixer = nn.SelfAttention(config, rope) if attends else nn.Mamba2(config)
        mlp = nn.Experts(config) if "ffn_gate_inp.weight" in config else nn.MLP(config)
        return nn.Layer(config, mixer, mlp, residual_scale=config.float("residual_scale", 1.0))
