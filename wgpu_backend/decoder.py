"""Decoder: what language models of one stack of layers have in common."""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.stack import Stack


class Decoder(Stack):
    """A `Stack` that scores every entry of the vocabulary as the next token.

    Parameters
    ----------
    backend : Backend

    Attributes
    ----------
    logit_scale : float
        Factor of scores; 1 where a model does not set it.
    logit_softcap : float
        Bound of scores; 0 for none. ``final_logit_softcapping`` of the file.
    """

    output: nn.Linear = nn.weight("output", "vocabulary", "width", alt="token_embd")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.logit_scale = 1.0
        self.logit_softcap = backend.config.float("final_logit_softcapping", 0.0)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every vocabulary entry."""
        y = self.output.precise(hidden)
        if self.logit_scale != 1:
            y = y.scale(factor=self.logit_scale)
        if not self.logit_softcap:
            return y
        return y.scale(factor=1 / self.logit_softcap).tanh().scale(factor=self.logit_softcap)
