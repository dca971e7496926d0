"""Encoder: what models that make vectors of whole texts have in common."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.stack import Stack


class Encoder(Stack):
    """A `Stack` whose tokens see all of their text, also what comes later.

    Its attention says ``causal=False``. A text is one pass, whole; it has no next token, so there
    are no logits: `LanguageModel.embed` pools the states of its rows. What sentence-transformers
    calls dense modules maps a pooled state on, and a reranker's classifier scores it, where the
    file has those.

    Parameters
    ----------
    backend : Backend

    Attributes
    ----------
    classifier_activation : str
        Between the matrices of a classifier.
    """

    causal = False
    classifier_activation: ClassVar[str] = "tanh"
    dense_2: nn.Linear | None = nn.weight("dense_2", "between", "width")
    dense_3: nn.Linear | None = nn.weight("dense_3", "vector_width", "between")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        shapes = {name: info.shape for name, info in backend.file.tensors.items()}
        width = keys.uint("embedding_length", at_least=1)
        rows = [shapes.get(f"dense_{n}.weight", (width,))[0] for n in (2, 3)]
        self.between = keys.uint("dense_2_feat_out", rows[0])
        self.vector_width = keys.uint("dense_3_feat_out", rows[1])
        self.classifier = nn.Classifier(
            width, shapes, partial(type(self).make_norm, keys), self.classifier_activation
        )
        super().__init__(backend)

    def vector(self, pooled: Tensor) -> Tensor:
        """Pooled states behind the dense modules, where the file has them."""
        for dense in (self.dense_2, self.dense_3):
            pooled = pooled if dense is None else dense(pooled)
        return pooled

    def score(self, pooled: Tensor) -> Tensor:
        """Scores of texts by one state of each."""
        return self.classifier(pooled) if self.classifier.is_there else super().score(pooled)
