"""EXAONE 4.

LG AI Research 2025, "EXAONE 4.0", §2.1: norms of results in place of inputs, and of every query and
key head; the larger one has a window in three of four layers, and no positions in the fourth.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.decoder import Decoder
from wgpu_backend.model import architecture


@architecture("exaone4")
class Exaone4(Decoder):
    """Norms stand behind attention and feed-forward."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Rotated, unless others have windows and this has none."""
        window = config.window(4)
        everywhere = not self.config.uint("attention.sliding_window", 0)
        rope = self.rope if window or everywhere else None
        attention = nn.SelfAttention(config, rope, window=window, qk_norm="head")
        after = ("post_attention_norm", "post_ffw_norm")
        return nn.Layer(config, attention, nn.MLP(config), before=(None, None), after=after)
