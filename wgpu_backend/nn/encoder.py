"""The `Encoder` base class of models that make embeddings of whole texts."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.transformer import Transformer


class Encoder(Transformer):
    """A `Transformer` whose tokens attend to all of their text, later tokens included.

    Its attention is made with ``causal=False``, so a text has to be one pass. There are no logits:
    `LanguageModel.embed` pools the states of the rows. A reranker's classifier scores a pooled
    state, where the file has one.

    Attributes
    ----------
    classifier_activation : str
        Activation between the matrices of a classifier.
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
        """Return whether the file has a classifier."""
        return self.classifier.is_there

    def score(self, pooled: Tensor) -> Tensor:
        """Return the scores of texts by one pooled state of each."""
        return self.classifier(pooled) if self.classifier.is_there else super().score(pooled)
