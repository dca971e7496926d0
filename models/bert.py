"""BERT, RoBERTa, XLM-RoBERTa, Nomic Embed 1 and 2, Jina Embeddings v2 and v3.

Devlin et al. 2019, "BERT", §3: the post-norm layers of Vaswani et al. 2017, on the normalised sum
of token, position and type embeddings. RoBERTa's position table begins with padding, which files
leave out. Nussbaum et al. 2024, "Nomic Embed", §3: RoPE and SwiGLU, without biases. Günther et al.
2023, "Jina Embeddings 2", §3: ALiBi to both sides, GeGLU. Nussbaum and Duderstadt 2025, "Training
Sparse Mixture Of Experts Text Embedding Models", §3: experts in every second layer. Sturua et al.
2024, "jina-embeddings-v3", §3: XLM-RoBERTa with RoPE.
"""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend import nn
from wgpu_backend.dtypes import I32
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.encoder import Encoder
from wgpu_backend.nn.model import architecture
from wgpu_backend.nn.model_inputs import ModelInput, TokenInput


@architecture("bert")
class Bert(Encoder):
    """BERT; its input ``token_types`` is 1 for the second of two texts, 0 by default."""

    norm = nn.LayerNorm
    # The last post-norm layer already ends in a norm.
    output_norm_name = None
    embedding_norm: nn.LayerNorm = nn.weight("token_embd_norm", "width")
    token_types: nn.Embedding | None = nn.weight("token_types", "types", "width")

    def __init__(self, backend: Backend) -> None:
        # Before `super().__init__`, which takes `types` for the shape of the field.
        types = backend.get("token_types.weight")
        self.types = 0 if types is None else types.shape[0]
        super().__init__(backend)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a post-norm layer."""
        attention = nn.SelfAttention(config, None, causal=False)
        return nn.PostNormLayer(config, attention, nn.MLP(config, "gelu_erf", gated=False))

    def inputs(self) -> Mapping[str, ModelInput]:
        """Return the input for types of tokens, if the model has types."""
        return {} if self.token_types is None else {"token_types": TokenInput(dtype=I32)}

    def embed(self, batch: Batch) -> Tensor:
        """Return the normalised sum of the embeddings."""
        x = super().embed(batch)
        if self.token_types is not None:
            # Without the input, one row for type 0 is added to all tokens.
            types = batch.input("token_types")
            x = x.add(self.token_types(batch.context.from_ints([0]) if types is None else types))
        return self.embedding_norm(x, self.make_norm(self.config).eps)


@architecture("nomic-bert")
class NomicBert(Bert):
    """Nomic Embed, with RoPE of a head's halves."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build BERT's layer with RoPE and a gate."""
        attention = nn.SelfAttention(config, self.rope, causal=False)
        return nn.PostNormLayer(config, attention, nn.MLP(config))


@architecture("jina-bert-v2")
class JinaBert(Bert):
    """Jina Embeddings v2, whose ALiBi slopes reach 2⁻⁸."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build BERT's layer with ALiBi and a gate."""
        attention = nn.SelfAttention(config, None, causal=False, alibi=8.0)
        return nn.PostNormLayer(config, attention, nn.MLP(config, "gelu_erf"))


@architecture("nomic-bert-moe")
class NomicBertMoe(Bert):
    """Nomic Embed 2, whose expert weights are not normalised after the softmax."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build BERT's layer with RoPE; every n-th layer from the second on has experts."""
        attention = nn.SelfAttention(config, self.rope, causal=False)
        period = self.config.uint("moe_every_n_layers", 0)
        if not period or config.index % period != 1:
            return nn.PostNormLayer(config, attention, nn.MLP(config, "gelu_erf", gated=False))
        routing = nn.Routing.from_config(config, normalised=False)
        experts = nn.Experts(config, "gelu_erf", routing, is_gated=False)
        return nn.PostNormLayer(config, attention, experts)


@architecture("jina-bert-v3")
class JinaBertV3(Bert):
    """Jina Embeddings v3, with RoPE of a head's halves."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build BERT's layer with RoPE."""
        attention = nn.SelfAttention(config, self.rope, causal=False)
        return nn.PostNormLayer(config, attention, nn.MLP(config, "gelu_erf", gated=False))
