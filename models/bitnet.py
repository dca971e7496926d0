"""BitNet b1.58.

Ma et al. 2024, "The Era of 1-bit LLMs", §2: Llama with norms before the last matrix of each block,
from Wang et al. 2022, "Foundation Transformers". Weights are -1, 0 or 1 times a scale, which
formats such as TQ1_0 store.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("bitnet")
class BitNet(Decoder):
    """BitNet with SiLU, as other runtimes run files of this name."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with two more norms."""
        attention = nn.SelfAttention(config, self.rope, output_norm="attn_sub_norm")
        return nn.Layer(config, attention, nn.MLP(config, norm="ffn_sub_norm"))
