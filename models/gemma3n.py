"""Gemma 3n.

Google 2025, "Gemma 3n model overview": Gemma 3 with several states per token, of which a layer
computes one and predicts the others (Baykal et al. 2023, "Alternating Updates for Efficient
Transformers", §3). A low-rank projection is added to attention (Menghani et al. 2024, "LAuReL",
§2), and gates keep only their largest values (You et al. 2025, "Spark Transformer"). As in Gemma 4,
every layer has an extra input, and the last layers read keys and values of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.model import architecture

from .gemma import Gemma3
from .gemma4 import LayerInput, LayerInputs, attention

# The last of so many layers has full attention.
PERIOD = 5


class AltUp(nn.Module):
    """A predictor of a token's states before a layer, corrected by the state that it computes."""

    router: nn.Linear = nn.weight("altup_router", "states", "width")
    router_norm: nn.Norm
    predict_coef: nn.Linear = nn.weight("altup_predict_coef", "mixes", "states")
    correct_coef: nn.Linear = nn.weight("altup_correct_coef", "states", "states")
    correct_scale: Tensor = nn.weight("altup_correct_scale.weight", "width")

    def __init__(self, config: nn.LayerConfig) -> None:
        self.width = config.width
        self.states = config.config.uint("altup.num_inputs", at_least=2)
        self.active = config.config.uint("altup.active_idx", 0, at_most=self.states - 1)
        self.mixes = self.states**2
        self.router_norm = config.norm("altup_router_norm")

    def predict(self, x: Tensor) -> Tensor:
        """Predict the states after this layer, (tokens, states, width), from those before it."""
        # The matrix is added to the identity: a prediction of zeros keeps all states.
        mix = self.predict_coef(self._modalities(x[:, self.active]))
        return mix.reshape(-1, self.states, self.states).matmul(x).add(x)

    def correct(self, predicted: Tensor, computed: Tensor) -> Tensor:
        """Correct (tokens, states, width) by the active state's error, given (tokens, width)."""
        # As in the published code, coefficients are stored as differences to 1.
        gains = self.correct_coef(self._modalities(computed)).reshape(-1, self.states, 1) + 1.0
        missed = computed.sub(predicted[:, self.active]).reshape(-1, 1, self.width)
        return predicted.add(missed.mul(gains))

    def _modalities(self, x: Tensor) -> Tensor:
        # The published code's `router_input_scale`.
        return self.router(self.router_norm(x).scale(factor=1 / self.width)).tanh()


class Laurel(nn.Module):
    """``x + norm(right(left(x)))``."""

    left: nn.Linear = nn.weight("laurel_l", "rank", "width")
    right: nn.Linear = nn.weight("laurel_r", "width", "rank")
    norm: nn.Norm

    def __init__(self, config: nn.LayerConfig) -> None:
        self.width = config.width
        self.rank = (config.get_shape("laurel_l.weight") or (0,))[0]
        self.norm = config.norm("laurel_post_norm")

    def __call__(self, x: Tensor) -> Tensor:
        """Map (tokens, width) to the same shape."""
        return x.add(self.norm(self.right(self.left(x))))


class Gemma3nLayer(nn.DecoderLayer):
    """Gemma 3's layer on one of a token's states, between prediction and correction of all."""

    norm: nn.Norm
    post_norm: nn.Norm
    mlp_norm: nn.Norm
    mlp_post_norm: nn.Norm

    def __init__(self, config: nn.LayerConfig, mixer: nn.Mixer) -> None:
        self.width, self.last, self.mixer = config.width, config.last, mixer
        self.norm, self.post_norm = map(config.norm, ("attn_norm", "post_attention_norm"))
        self.mlp_norm, self.mlp_post_norm = map(config.norm, ("ffn_norm", "post_ffw_norm"))
        self.mlp = nn.MLP(config, sparse_gelu(config.float("activation_sparsity_scale")))
        self.altup, self.laurel = AltUp(config), Laurel(config)
        self.layer_input = LayerInput(config)

    def forward(self, x: Tensor, batch: Batch, inputs: Tensor | None = None) -> Tensor:
        """Map (tokens, states * width) to the same shape, with the layer's (tokens, cols)."""
        predicted = self.altup.predict(x.reshape(x.shape[0], self.altup.states, self.width))
        normed = self.norm(predicted[:, self.altup.active])
        y = self.mixer.forward(normed, batch)
        if self.last:
            rows = batch.select_outputs(predicted.reshape(*x.shape))
            predicted = rows.reshape(-1, self.altup.states, self.width)
            y, normed = batch.select_outputs(y), batch.select_outputs(normed)
            inputs = inputs if inputs is None else batch.select_outputs(inputs)
        x = self._compute(predicted[:, self.altup.active], normed, self.mixer.project(y))
        x = self.altup.correct(predicted, x)
        return (x if inputs is None else self._add_inputs(inputs, x)).reshape(x.shape[0], -1)

    def _compute(self, x: Tensor, normed: Tensor, attended: Tensor) -> Tensor:
        """Return the active state (rows, width) after attention and feed-forward."""
        # The sum of two estimates of a state keeps its magnitude by the root of a half.
        x = x.add(self.post_norm(attended)).add(self.laurel(normed)).scale(factor=0.5**0.5)
        return x.add(self.mlp_post_norm(self.mlp.forward(self.mlp_norm(x))))

    def _add_inputs(self, inputs: Tensor, x: Tensor) -> Tensor:
        """Add the layer's inputs to all states (rows, states, width) but the first."""
        gate = x[:, self.altup.active].mul(self.altup.correct_scale)
        added = self.layer_input(gate, inputs).reshape(-1, 1, self.width)
        return x[:, :1].concat(x[:, 1:].add(added), axis=1)


def sparse_gelu(scale: float) -> Callable[[Tensor], Tensor]:
    """Return GELU of the values above the mean by `scale` standard deviations; of all for -inf.

    You et al. 2025, section 3: variances are divided by n, as in transformers, with which published
    models are tested. llama.cpp divides by n - 1, which changes a published model's deviations by
    0.003 %.
    """

    def activation(x: Tensor) -> Tensor:
        cutoff = x.mean(-1, keep_dims=True).add(x.stddev(-1, keep_dims=True).scale(factor=scale))
        return x.sub(cutoff).relu().gelu()

    return activation if scale > -float("inf") else lambda x: x.gelu()


@architecture("gemma3n")
class Gemma3n(Gemma3):
    """Gemma 3n: the first state is the embedding, the others are its projections."""

    steerable = True
    split: Tensor = nn.weight("altup_proj.weight", "others", "width", "width")
    merge: Tensor = nn.weight("altup_unembd_proj.weight", "others", "width", "width")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.others = keys.uint("altup.num_inputs", at_least=2) - 1
        self.inputs_of_layers = LayerInputs(keys, backend.require("token_embd.weight").shape[0])
        super().__init__(backend)
        # Published models have 30, for files without the key.
        self.logit_softcap = keys.float("final_logit_softcapping", 30.0)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer; every fifth has full attention."""
        return Gemma3nLayer(config, attention(config, self.rope, self.local_rope, PERIOD))

    def hidden(self, batch: Batch) -> Tensor:
        """Return the states of the output rows after the last norm."""
        x = self.embed(batch)
        inputs = self.inputs_of_layers(x, batch.tokens)
        x = self.expand(x)
        layers = cast("Sequence[Gemma3nLayer]", self.layers)
        for i, (layer, own) in enumerate(zip(layers, inputs, strict=True)):
            x = self.add_direction(i, layer.forward(x, batch, own))
        return self.normalise(self.merge_states(x))

    def expand(self, x: Tensor) -> Tensor:
        """Make the states (tokens, states * width) of embeddings (tokens, width)."""
        others = self.split.reshape(-1, self.width).linear(x, None)
        others = others.reshape(x.shape[0], self.others, self.width)
        # A projection changes the magnitude of a row, and layers expect that of an embedding.
        others = rescale(others, magnitude(x).reshape(-1, 1, 1))
        return x.concat(others.reshape(x.shape[0], -1), axis=1)

    def merge_states(self, x: Tensor) -> Tensor:
        """Average the states (rows, states * width), all but the first projected: (rows, width)."""
        first, *others = x.chunk(-1, self.width)
        wanted, total = magnitude(first), first
        for weight, other in zip(self.merge, others, strict=True):
            total = total.add(rescale(weight.linear(other.contiguous(), None), wanted))
        return total.scale(factor=1 / (self.others + 1))


def magnitude(x: Tensor) -> Tensor:
    """Return the root mean square, at least 1e-5, of (..., cols): (..., 1)."""
    # As in the published code, the bound is of the mean square, before the root.
    return x.sqr().mean(-1, keep_dims=True).clamp(1e-5, float("inf")).sqrt()


def rescale(x: Tensor, wanted: Tensor) -> Tensor:
    """Scale rows of (..., cols) to a magnitude (..., 1)."""
    return x.mul(wanted.div(magnitude(x)))
