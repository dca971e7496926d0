"""Encoder: what models that make vectors of whole texts have in common."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.transformer import Stack


class Encoder(Stack):
    """A `Stack` whose tokens see all of their text, also what comes later.

    Its attention says ``causal=False``. A text is one pass, whole; it has no next token, so there
    are no logits: `LanguageModel.embed` pools the states of its rows. A reranker's classifier
    scores a pooled state, where the file has one.

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

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        shapes = {name: info.shape for name, info in backend.file.tensors.items()}
        width = keys.uint("embedding_length", at_least=1)
        self.classifier = nn.Classifier(
            width, shapes, partial(type(self).make_norm, keys), self.classifier_activation
        )
        super().__init__(backend)

    @property
    def is_reranker(self) -> bool:
        """Whether the file has a classifier."""
        return self.classifier.is_there

    def score(self, pooled: Tensor) -> Tensor:
        """Scores of texts by one state of each."""
        return self.classifier(pooled) if self.classifier.is_there else super().score(pooled)
