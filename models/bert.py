"""BERT, RoBERTa, XLM-RoBERTa, Nomic Embed, Jina Embeddings v2.

Devlin et al. 2019, "BERT", §3: layers of Vaswani et al. 2017 with norms behind the residuals, on
the sum of a token's embedding, its position's and its type's, normalised. RoBERTa's positions begin
with the padding's, which files leave out. Nussbaum et al. 2024, "Nomic Embed", §3: rotated, with
SwiGLU, without biases. Günther et al. 2023, "Jina Embeddings 2", §3: ALiBi to both sides, GeGLU.
"""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend import nn
from wgpu_backend.batch import Batch
from wgpu_backend.dtypes import I32
from wgpu_backend.encoder import Encoder
from wgpu_backend.given import Given, TokenInput
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.model import architecture


@architecture("bert")
class Bert(Encoder):
    """Works may give ``token_types``, 1 for the second of two texts; all are 0 without.

    A reranker has a network of one or two layers, which scores a text by its first token's state.
    """

    norm = nn.LayerNorm
    output_norm_name = None
    embedding_norm: nn.LayerNorm = nn.weight("token_embd_norm", "width")
    token_types: nn.Embedding | None = nn.weight("token_types", "types", "width")

    classifier: nn.Linear | None = nn.weight("cls", "classified", "width")
    classifier_output: nn.Linear | None = nn.weight("cls.output", "classes", "width")

    def __init__(self, backend: Backend) -> None:
        names = ("token_types.weight", "cls.weight", "cls.output.weight")
        found = [backend.get(name) for name in names]
        rows = [0 if weight is None else weight.shape[0] for weight in found]
        self.types, self.classified, self.classes = rows
        super().__init__(backend)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Norms behind the residuals."""
        attention = nn.SelfAttention(config, None, causal=False)
        return nn.PostNormLayer(config, attention, nn.MLP(config, "gelu_erf", gated=False))

    def inputs(self) -> Mapping[str, Given]:
        """Types of tokens, where the model has any."""
        return {} if self.token_types is None else {"token_types": TokenInput(dtype=I32)}

    def embed(self, batch: Batch) -> Tensor:
        """Sum of the embeddings, normalised."""
        x = super().embed(batch)
        if self.token_types is not None:
            types = batch.given("token_types")
            x = x.add(self.token_types(batch.context.from_ints([0]) if types is None else types))
        return self.embedding_norm(x, self.make_norm(self.config).eps)

    def score(self, hidden: Tensor) -> Tensor:
        """Scores of texts by the states of their first tokens."""
        if self.classifier is None and self.classifier_output is None:
            return super().score(hidden)
        y = hidden if self.classifier is None else self.classifier(hidden).tanh()
        return y if self.classifier_output is None else self.classifier_output.precise(y)


@architecture("nomic-bert")
class NomicBert(Bert):
    """Halves are rotated."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """BERT's, rotated, with a gate."""
        attention = nn.SelfAttention(config, self.rope, causal=False)
        return nn.PostNormLayer(config, attention, nn.MLP(config))


@architecture("jina-bert-v2")
class JinaBert(Bert):
    """Slopes reach two to the minus eight."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """BERT's, with ALiBi and a gate."""
        attention = nn.SelfAttention(config, None, causal=False, alibi=8.0)
        return nn.PostNormLayer(config, attention, nn.MLP(config, "gelu_erf"))
