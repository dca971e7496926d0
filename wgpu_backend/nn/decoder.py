"""The `Decoder` base class of language models."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.model_inputs import ModelInput, RowsInput
from wgpu_backend.nn.rope import POSITIONS, SEVERAL
from wgpu_backend.nn.transformer import EMBEDDINGS, Transformer


class Decoder(Transformer):
    """A `Transformer` that predicts the next token.

    Model inputs are ``embeddings`` in place of some tokens and, for models that rotate by several
    positions, ``rope_positions`` of time, height and width.

    A subclass builds a layer in `layer`, and sets options of all layers as class attributes. Less
    common ones are in ``help("wgpu_backend.nn.transformer.Transformer")``.

    Attributes
    ----------
    norm : type of Norm
        Kind of every norm: `nn.RMSNorm` by default, or `nn.LayerNorm`.
    output_norm_name : str or None
        Name of the last norm's weight, ``"output_norm"``; None where no norm follows the layers.
    rope_interleaved : bool
        Whether RoPE pairs adjacent values; otherwise the halves of a head.
    embedding_scale : float
        Factor of embeddings; 1 by default.
    logit_scale : float
        Factor of logits; 1 by default.
    logit_softcap : float
        Soft cap of logits; 0 for none. ``final_logit_softcapping`` of the file.
    """

    output: nn.Linear = nn.weight("output", "vocabulary", "width", alt="token_embd")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.logit_scale = 1.0
        self.logit_softcap = backend.config.float("final_logit_softcapping", 0.0)

    def inputs(self) -> Mapping[str, ModelInput]:
        """Return the inputs for embeddings that are not tokens, and for their positions."""
        found: dict[str, ModelInput] = {EMBEDDINGS: RowsInput(self.width)}
        return found if self.sectioning is None else found | {POSITIONS: SEVERAL}

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of every vocabulary entry."""
        y = self.output.precise(hidden)
        if self.logit_scale != 1:
            y = y.scale(factor=self.logit_scale)
        if not self.logit_softcap:
            return y
        return y.scale(factor=1 / self.logit_softcap).tanh().scale(factor=self.logit_softcap)
