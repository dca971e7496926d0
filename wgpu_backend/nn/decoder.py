"""Decoder: what language models of one stack of layers have in common."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.model_inputs import Given, RowsInput
from wgpu_backend.nn.rope import POSITIONS, SEVERAL
from wgpu_backend.nn.transformer import EMBEDDINGS, Stack


class Decoder(Stack):
    """A `Stack` that scores every entry of the vocabulary as the next token.

    Works may give ``embeddings`` in place of some tokens, and where a model rotates by several
    positions ``rope_positions``: of time, height and width.

    A subclass says in `layer` what a layer is made of, and in class attributes what is common to
    its layers. The less common ones are in ``help("wgpu_backend.nn.transformer.Stack")``.

    Parameters
    ----------
    backend : Backend

    Attributes
    ----------
    norm : type of Norm
        Kind of every norm: `nn.RMSNorm` where a class does not say, or `nn.LayerNorm`.
    output_norm_name : str or None
        Of the last norm's weight, ``"output_norm"``; None where no norm follows the layers.
    rope_interleaved : bool
        Whether neighbours are rotated with each other; otherwise halves of a head.
    embedding_scale : float
        Factor of embeddings; 1 where a model does not set it.
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

    def inputs(self) -> Mapping[str, Given]:
        """Embeddings of what is not text, and where it stands."""
        found: dict[str, Given] = {EMBEDDINGS: RowsInput(self.width)}
        return found if self.sectioning is None else found | {POSITIONS: SEVERAL}

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every vocabulary entry."""
        y = self.output.precise(hidden)
        if self.logit_scale != 1:
            y = y.scale(factor=self.logit_scale)
        if not self.logit_softcap:
            return y
        return y.scale(factor=1 / self.logit_softcap).tanh().scale(factor=self.logit_softcap)
