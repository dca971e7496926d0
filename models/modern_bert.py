"""ModernBERT, EuroBERT, NeoBERT, Llama Nemotron Embed.

Warner et al. 2024, "Smarter, Better, Faster, Longer", §2.1: pre-norm layers without biases, GeGLU,
and a window around each token except in every third layer, from the first; each kind has its own
RoPE base. Boizard et al. 2025, "EuroBERT", §2.1: Llama's layers with bidirectional attention. Le
Breton et al. 2025, "NeoBERT", §3: the same, without grouped queries. Babakhin et al. 2025,
"Llama-Embed-Nemotron-8B", §2: Llama without its causal mask.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.encoder import Encoder
from wgpu_backend.nn.model import architecture

POOLINGS = ("none", "mean", "cls")
ACTIVATIONS = {"gelu": "gelu_erf", "silu": "silu"}


@architecture("modern-bert")
class ModernBert(Encoder):
    """ModernBERT, where the norm of the embeddings replaces that of the first layer."""

    norm = nn.LayerNorm
    classifier_activation = "gelu_erf"
    embedding_norm: nn.LayerNorm = nn.weight("token_embd_norm", "width")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        number = self.config.uint("classifier.pooling_type", POOLINGS.index("mean"))
        if number not in (1, 2):
            raise self.fail(f"classifier.pooling_type is {number}, needs 1 (mean) or 2 (cls)")
        self.scored_pooling = POOLINGS[number]

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with gate and projection in one matrix."""
        window = config.window(3, first=True)
        attention = nn.SelfAttention(
            config,
            self.local_rope if window else self.rope,
            causal=False,
            # Half of the window on either side of a token.
            symmetric_window=window,
        )
        # The embeddings are normalised already.
        first = "attn_norm" if "attn_norm.weight" in config else None
        mlp = nn.MLP(config, self._activation())
        return nn.Layer(config, attention, mlp, before=(first, "ffn_norm"))

    def _activation(self) -> str:
        name = self.config.string("hidden_activation", "gelu")
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise self.fail(f"hidden_activation is {name!r}, needs one of {known}")
        return ACTIVATIONS[name]

    def embed(self, batch: Batch) -> Tensor:
        """Return the normalised embeddings."""
        return self.embedding_norm(super().embed(batch), self.make_norm(self.config).eps)


@architecture("eurobert")
class EuroBert(Encoder):
    """EuroBERT, with RoPE of a head's halves."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, not causal."""
        attention = nn.SelfAttention(config, self.rope, causal=False)
        return nn.Layer(config, attention, nn.MLP(config))


@architecture("neo-bert")
class NeoBert(EuroBert):
    """NeoBERT, with gate and projection in one matrix."""

    output_norm_name = "enc.output_norm"
    rope_interleaved = True


@architecture("llama-embed")
class LlamaEmbed(EuroBert):
    """Llama Nemotron Embed, with RoPE of adjacent pairs."""

    rope_interleaved = True
