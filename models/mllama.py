"""Llama 3.2 Vision.

Dubey et al. 2024, "The Llama 3 Herd of Models", §7.2: every fifth layer has cross-attention to the
rows of pictures in place of self-attention, with gates that begin at 0, so that the model of text
alone stays the same. Tokens before the first picture skip these layers, as in the published code.
Transformers 5 skips only their feed-forward networks (huggingface/transformers, issue 39379).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from wgpu_backend import nn
from wgpu_backend.errors import ModelError
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.layers import fused_linear
from wgpu_backend.nn.model import architecture
from wgpu_backend.nn.model_inputs import STATES, AttendedInput, ModelInput

# Four tiles of 560 pixels a side, in patches of 14, with a class token each.
_PICTURE = 4 * (40 * 40 + 1)
# The logit of a token that is only read.
_NEVER = -1e30


class PictureAttention(nn.CrossAttention):
    """Cross-attention whose queries and keys are normalised, head by head."""

    query_norm: nn.Norm
    key_norm: nn.Norm

    def __init__(self, config: nn.LayerConfig) -> None:
        super().__init__(config)
        self.picture = config.config.uint("attention.cross_attention_rows", _PICTURE, at_least=1)
        self.query = nn.weight("cross_attn_q_proj", "queries", "width")
        self.key = nn.weight("cross_attn_k_proj", "keys", "width")
        self.value = nn.weight("cross_attn_v_proj", "values", "width")
        self.output = nn.weight("cross_attn_o_proj", "width", "outputs")
        self.query_norm = config.norm("cross_attn_q_norm", self.head)
        self.key_norm = config.norm("cross_attn_k_norm", self.head)

    def make_queries(self, x: Tensor) -> Tensor:
        """Return normalised queries: (tokens, heads, head)."""
        return self.query_norm(super().make_queries(x))

    def project_states(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, (rows, cols) each, of the rows of a picture."""
        key, value = fused_linear(states, self.key, self.value)
        heads = key.reshape(states.shape[0], self.kv_heads, self.head)
        return self.key_norm(heads).reshape(*key.shape), value


class PictureLayer(nn.DecoderLayer):
    """``x += tanh(a) cross(norm(x))``, ``x += tanh(b) mlp(norm(x))``, for tokens after a picture.

    Other tokens do not change, as if there were no such layer.
    """

    mixer_norm: nn.Norm
    mlp_norm: nn.Norm
    cross_gate: Tensor = nn.weight("cross_attn_attn_gate", 1)
    mlp_gate: Tensor = nn.weight("cross_attn_mlp_gate", 1)

    def __init__(self, config: nn.LayerConfig) -> None:
        self.width, self.last, self.index = config.width, config.last, config.index
        self.mixer, self.mlp = PictureAttention(config), nn.MLP(config)
        self.mixer_norm, self.mlp_norm = config.norm("attn_norm"), config.norm("ffn_norm")

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer keeps the output rows only."""
        if batch.has(STATES):
            x = self._attend(x, batch)
        return batch.select_outputs(x) if self.last else x

    def _attend(self, x: Tensor, batch: Batch) -> Tensor:
        only = batch.context.from_ints([0])
        # A gather, since an op needs an operand of the graph.
        a, b = (gate.reshape(1, 1).rows(only) for gate in (self.cross_gate, self.mlp_gate))
        y = self.mixer.project(self.mixer.forward(self.mixer_norm(x), batch))
        seen = x.add(y.mul(a.tanh()))
        y = self.mlp.forward(self.mlp_norm(seen))
        seen = seen.add(y.mul(b.tanh()))
        ends = batch.encoder_key_values(self.index).ends
        return ends.reshape(-1, 1).greater_equal(only).where(seen, x)


@architecture("mllama")
class Mllama(Decoder):
    """Llama 3.2 Vision."""

    # As for Llama, files need adjacent pairs.
    rope_interleaved = True

    # The embedding has rows for tokens that are only read, such as a picture's.
    output: nn.Linear = nn.weight("output", "logit_cols", "width", alt="token_embd")

    def __init__(self, backend: Backend) -> None:
        info = backend.file.tensors.get("output.weight")
        self.logit_cols = (info or backend.file.tensors["token_embd.weight"]).shape[0]
        count = backend.config.uint("block_count", at_least=1)
        key = "attention.cross_attention_layers"
        self.crossed = set(backend.config.ints(key))
        if not self.crossed < {*range(count)}:
            raise ModelError(
                f"{backend.file.path}: {key} is {sorted(self.crossed)}, needs some of 0 to "
                f"{count - 1}"
            )
        super().__init__(backend)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, or one that attends to pictures."""
        if config.index in self.crossed:
            return PictureLayer(config)
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))

    def inputs(self) -> Mapping[str, ModelInput]:
        """Return the input for rows of pictures."""
        return {STATES: AttendedInput(self.width)}

    def project_rows(self, rows: Tensor) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return keys and values of a picture's rows, by layer."""
        crossed = {i: cast("PictureAttention", self.layers[i].mixer) for i in sorted(self.crossed)}
        return {i: attention.project_states(rows) for i, attention in crossed.items()}

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of every row of the embedding; rows without an output never win."""
        y = super().logits(hidden)
        if (missing := self.vocabulary - y.shape[1]) <= 0:
            return y
        never = np.full((y.shape[0], missing), _NEVER, np.float32)
        return y.concat(y.context.from_numpy(never), axis=1)
