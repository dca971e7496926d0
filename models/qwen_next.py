"""Qwen3-Next and Qwen3.5.

Gated delta nets, and gated attention in every fourth layer: Qwen Team 2025, "Qwen3-Next: Towards
Ultimate Training & Inference Efficiency"; the delta rule is Yang, Kautz & Hatamizadeh 2024, "Gated
Delta Networks"; the gate of attention Qiu et al. 2025, "Gated Attention for Large Language Models",
§2.2.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


class GatedAttention(nn.SelfAttention):
    """Attention with a gate for each value; gates are projected together with the queries."""

    def __init__(self, config: nn.LayerConfig, rope: nn.Rotary | None) -> None:
        super().__init__(config, rope, qk_norm="head")
        # Rows of each head's queries, then of its gates.
        self.queries *= 2

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Attend: (tokens, width) to (tokens, heads * value_head), for `project`."""
        tokens = x.shape[0]
        q, k, v = nn.fused_linear(x, self.query, self.key, self.value)
        q, gate = q.reshape(tokens, self.heads, 2 * self.head).chunk(-1, self.head)
        k = k.reshape(tokens, self.kv_heads, self.head)
        v = v.reshape(tokens, self.kv_heads, self.value_head)
        q, k = self.apply_positions(q, k, batch)
        y = nn.attend(self.layer, q, k, v, batch, scale=self.scale)
        return y.mul(gate.sigmoid().reshape(tokens, -1))


@architecture("qwen3next")
class Qwen3Next(Decoder):
    """Qwen3-Next, with experts and a shared one; adjacent value heads share keys."""

    tiled_keys = False

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of a delta net or attention, and experts."""
        names = ("attn_norm", "post_attention_norm")
        return nn.Layer(config, self._mixer(config), self.feed_forward(config), before=names)

    def _mixer(self, config: nn.LayerConfig) -> nn.Mixer:
        # Only delta nets have decays, which tells the two kinds of layers apart.
        if "ssm_a" in config:
            return nn.GatedDelta(config, tiled=self.tiled_keys)
        return GatedAttention(config, self.rope)

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Build experts, with normalised weights from a softmax over all scores."""
        return nn.Experts(config)


@architecture("qwen35moe")
class Qwen35Moe(Qwen3Next):
    """Qwen3.5 with experts; keys are assigned to heads round-robin."""

    tiled_keys = True
    sectioning = "interleaved"


@architecture("qwen35")
class Qwen35(Qwen35Moe):
    """Qwen3.5, with one feed-forward network for all tokens."""

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Build a SwiGLU network."""
        return nn.MLP(config)
