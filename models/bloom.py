"""BLOOM, MPT, Refact, Baichuan: positions by ALiBi.

BigScience 2022, "BLOOM", §3.2: GPT-2's layers, and a norm of the embeddings. MosaicML 2023,
"Introducing MPT-7B": no biases; some models clamp queries, keys and values. Refact and Baichuan
have Llama's layers; Baichuan 7B has RoPE. Press et al. 2022, "Train Short, Test Long", §3, for the
slopes.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("bloom")
class Bloom(Decoder):
    """BLOOM, whose ALiBi slopes reach 2⁻⁸."""

    norm = nn.LayerNorm
    # For stable training (BLOOM, §3.2).
    embedding_norm: nn.LayerNorm = nn.weight("token_embd_norm", "width")

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build GPT-2's layer with ALiBi."""
        attention = nn.SelfAttention(config, None, alibi=8.0)
        return nn.Layer(config, attention, nn.MLP(config, "gelu", gated=False))

    def embed(self, batch: Batch) -> Tensor:
        """Return the normalised embeddings."""
        return self.embedding_norm(super().embed(batch), self.make_norm(self.config).eps)


@architecture("mpt")
class MPT(Decoder):
    """MPT, with learned positions where the file has them."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build GPT-2's layer with ALiBi and clamping."""
        attention = nn.SelfAttention(
            config,
            None,
            # Files of models with learned positions have 0 or lack the key.
            alibi=config.float("attention.max_alibi_bias", 0.0),
            clamp=config.float("attention.clamp_kqv", 0.0),
        )
        return nn.Layer(config, attention, nn.MLP(config, "gelu_erf", gated=False))


@architecture("refact")
class Refact(Decoder):
    """Refact 1.6B (Small Cloud AI 2023, model card)."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with ALiBi."""
        return nn.Layer(config, nn.SelfAttention(config, None, alibi=8.0), nn.MLP(config))


@architecture("baichuan")
class Baichuan(Decoder):
    """Baichuan 1 and 2 (Yang et al. 2023, "Baichuan 2", §2.2)."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, with ALiBi in the larger model."""
        # No key says which; the models of 13 billion parameters have 40 layers.
        alibi = self.block_count == 40
        attention = (
            nn.SelfAttention(config, None, alibi=8.0)
            if alibi
            else nn.SelfAttention(config, self.rope)
        )
        return nn.Layer(config, attention, nn.MLP(config))
