"""GPT-2, StarCoder, StarCoder 2, CodeShell, GPT-NeoX, Pythia, Falcon.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3: pre-norm blocks
with layer norms and biases, GELU without a gate, learned positions. Changes in the other models:

==========  ================  ==========  =========  ===============================
            positions         residual    GELU       KV heads
==========  ================  ==========  =========  ===============================
GPT-2       learned           sequential  tanh       as queries
StarCoder   learned           sequential  tanh       one
StarCoder2  rotated           sequential  tanh       grouped
GPT-NeoX    a part rotated    either      exact      as queries
Falcon      rotated           parallel    exact      one (7B), grouped (40B, 2 norms)
==========  ================  ==========  =========  ===============================
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("gpt2", "starcoder")
class GPT2(Decoder):
    """GPT-2; StarCoder is Li et al. 2023, "StarCoder: may the source be with you!", §5.1."""

    norm = nn.LayerNorm
    # Adding them to the embeddings is `Transformer`'s.
    position_embedding = nn.weight("position_embd", "positions", "width", needed=True)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a pre-norm layer without rotation: positions are in the embeddings."""
        attention = nn.SelfAttention(config, None)
        return nn.Layer(config, attention, nn.MLP(config, "gelu", gated=False))


@architecture("starcoder2", "codeshell")
class StarCoder2(Decoder):
    """StarCoder 2: Lozhkov et al. 2024, "StarCoder 2 and The Stack v2", §6.1; and CodeShell."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build GPT-2's layer with RoPE."""
        attention = nn.SelfAttention(config, self.rope)
        return nn.Layer(config, attention, nn.MLP(config, "gelu", gated=False))


@architecture("gptneox")
class GPTNeoX(Decoder):
    """GPT-NeoX (Black et al. 2022, "GPT-NeoX-20B", §2.1), Pythia, StableLM alpha, RedPajama."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with parallel or sequential residuals, each block with its own norm."""
        attention = nn.SelfAttention(config, self.rope)
        # Published code uses the exact GELU here, and its approximation by tanh in GPT-2.
        mlp = nn.MLP(config, "gelu_erf", gated=False)
        if self.config.bool("use_parallel_residual"):
            return nn.ParallelLayer(config, attention, mlp, mlp_norm="ffn_norm")
        return nn.Layer(config, attention, mlp)


@architecture("falcon")
class Falcon(Decoder):
    """Falcon: Almazrouei et al. 2023, "The Falcon Series of Open Language Models", §4."""

    norm = nn.LayerNorm

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a parallel layer with one norm; if there are two, attention has the second."""
        attention = nn.SelfAttention(config, self.rope)
        mlp = nn.MLP(config, "gelu_erf", gated=False)
        # In files of 40B models `attn_norm` is the norm of the feed-forward network.
        if "attn_norm_2.weight" in config:
            return nn.ParallelLayer(
                config, attention, mlp, norm="attn_norm_2", mlp_norm="attn_norm"
            )
        return nn.ParallelLayer(config, attention, mlp)
