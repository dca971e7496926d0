"""Gemma 4.

Google 2026, "Gemma 4 model card". Of Gemma 3's two kinds of layers, those with full attention have
wider heads and rotate some pairs only (Barbero et al. 2024, "Round and Round We Go!"). Values have
unit mean square, or are keys before their norm. The last layers read keys and values of an earlier
one (Brandon et al. 2024, "Cross-Layer Attention"). Small models have an embedding of each token for
every layer, as Gemma 3n; large ones have experts in addition to the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

from wgpu_backend import nn
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import SharedLayer
from wgpu_backend.nn.model import architecture

from .gemma import AFTER, Gemma

INPUT = "embedding_length_per_layer_input"


class Attention(nn.SelfAttention):
    """Attention whose values have unit mean square and whose scores are not scaled."""

    def __init__(self, config: nn.LayerConfig, rope: nn.Rotary, window: int) -> None:
        # Published models do not scale scores: norms already bound queries and keys.
        super().__init__(config, rope, window=window, scale=1.0, qk_norm="head")
        # Layers with full attention of the larger models have no weights for values.
        self.key_is_value = not ("attn_v.weight" in config or "attn_qkv.weight" in config)

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag the weights; values may have none."""
        super().declare(has)
        if self.key_is_value:
            self.value = nn.weight("attn_v", needed=False)

    def project_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (tokens, heads, head), keys and values (tokens, kv_heads, head)."""
        q, k, v = super().project_heads(x)
        return q, k, v.rms_norm(None, eps=self.eps)

    def _projections(self, x: Tensor) -> list[Tensor]:
        if not self.key_is_value:
            return super()._projections(x)
        q, k = nn.fused_linear(x, self.query, self.key)
        # Before the norm and the rotation of keys, which values do not get.
        return [q, k, k]


class BorrowingAttention(nn.SelfAttention):
    """Attention to keys and values of layer `source`; the file's own key weights are unused."""

    def __init__(self, config: nn.LayerConfig, rope: nn.Rotary, window: int, source: int) -> None:
        super().__init__(config, rope, window=window, scale=1.0, qk_norm="head")
        self.source = source

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag the weights of queries only."""
        self.query = nn.weight("attn_q", "queries", "width")
        self.output = nn.weight("attn_output", "width", "outputs")
        # Files may have these weights, which nothing reads.
        self.key = nn.weight("attn_k", "keys", "width", needed=False)
        self.value = nn.weight("attn_v", "values", "width", needed=False)
        self.key_norm = nn.weight("attn_k_norm", "head", kind=nn.RMSNorm, needed=False)

    @property
    def cached(self) -> SharedLayer:
        """Return the cache entry: none of its own, that of `source`."""
        return SharedLayer(self.source)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Attend: (tokens, width) to (tokens, heads * head), for `project`."""
        q = self._normalise(self.query(x).reshape(-1, self.heads, self.head), self.query_norm)
        q = q if self.rope is None else self.rope(q, batch.positions)
        return nn.attend(self.layer, q, None, None, batch, scale=self.scale, window=self.window)


def attention(
    config: nn.LayerConfig, rope: nn.Rotary, local_rope: nn.Rotary, period: int = 0
) -> Attention | BorrowingAttention:
    """Build a layer's attention; the last ones share keys with an earlier layer of their kind.

    Parameters
    ----------
    rope, local_rope : Rotary
        Rotations of layers without a window, and with one.
    period : int
        See `LayerConfig.window`.
    """
    window = config.window(period)
    rope = local_rope if window else rope
    first = config.count - config.uint("attention.shared_kv_layers", 0)
    if config.index < first:
        return Attention(config, rope, window)
    # Keys of a layer with a window are freed when the window has passed, so that a layer can only
    # borrow from one with the same window.
    for source in range(first - 1, -1, -1):
        if replace(config, index=source).window(period) == window:
            return BorrowingAttention(config, rope, window, source)
    raise config.fail(
        f"layer {config.index} has a window of {window} and no keys; none of the first {first} "
        "layers has both that window and keys"
    )


class LayerInputs(nn.Module):
    """The inputs of all layers for each token: an embedding plus a projection of the state."""

    tokens: nn.Embedding = nn.weight("per_layer_token_embd", "vocabulary", "all")
    projection: nn.Linear = nn.weight("per_layer_model_proj", "all", "width")
    norm: nn.Norm

    def __init__(self, config: Config, vocabulary: int) -> None:
        self.vocabulary, self.width = vocabulary, config.uint("embedding_length")
        self.layers, self.cols = config.uint("block_count"), config.uint(INPUT, at_least=1)
        self.all = self.layers * self.cols
        norm = nn.RMSNorm.from_config(config)
        self.norm = nn.weight("per_layer_proj_norm", "cols", kind=norm, needed=True)

    def __call__(self, x: Tensor, tokens: Tensor) -> list[Tensor]:
        """Return each layer's (tokens, cols) for embeddings (tokens, width) and their tokens."""
        by_layer = (x.shape[0], self.layers, self.cols)
        # As in the published code: the projection is scaled by the root of the width, and the mean
        # of two independent terms by the root of a half.
        projected = self.projection(x).scale(factor=self.width**-0.5).reshape(*by_layer)
        own = self.tokens(tokens).scale(factor=self.cols**0.5).reshape(*by_layer)
        both = self.norm(projected).add(own).scale(factor=0.5**0.5)
        return [both[:, i] for i in range(self.layers)]


class LayerInput(nn.Module):
    """A layer's use of its input, gated by the state."""

    gate: nn.Linear = nn.weight("inp_gate", "cols", "width")
    up: nn.Linear = nn.weight("proj", "width", "cols")
    norm: nn.Norm

    def __init__(self, config: nn.LayerConfig) -> None:
        self.width, self.cols = config.width, config.config.uint(INPUT)
        self.norm = config.norm("post_norm")

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Combine the state (rows, width) with the inputs (rows, cols): (rows, width)."""
        return self.norm(self.up(self.gate(x).geglu(inputs)))


class Router(nn.Linear):
    """The router of experts, on states of unit mean square times the file's scale."""

    scale: Tensor | None = nn.weight("scale", "cols")

    def __init__(self, eps: float, cols: int) -> None:
        self.eps, self.cols = eps, cols

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (tokens, cols) to (tokens, experts)."""
        x = x.rms_norm(self.scale, eps=self.eps)
        return self.add_adapters(self.weight.linear(x, residual), x).scale(factor=self.cols**-0.5)


class WeighedDown(nn.ExpertLinear):
    """A down projection whose per-expert scale multiplies the experts' weights instead.

    The published model has the scale in its router, as ``per_expert_scale``. Files store it next to
    the matrices, where other models have scales that belong to a format.
    """

    def by(self, ids: Tensor, x: Tensor) -> Tensor:
        """Map (tokens, used, k) with the experts of (tokens, used) ids: (tokens, used, m)."""
        y = self.weight.mulmat_id(x, ids)
        for adapter in self.adapters:
            y = adapter.by(y, ids, x)
        return y

    def scale_weights(self, weights: Tensor, ids: Tensor) -> Tensor:
        """Multiply the weights (tokens, used) of experts by their scales."""
        if self.scale is None:
            return weights
        return weights.mul(self.scale.reshape(-1, 1).rows(ids.reshape(-1)).reshape(*ids.shape))


class MLPAndExperts(nn.Module):
    """The sum of a feed-forward network and of experts, each between its own norms."""

    mlp_norm: nn.Norm
    mlp_post_norm: nn.Norm
    experts_norm: nn.Norm
    experts_post_norm: nn.Norm

    def __init__(self, config: nn.LayerConfig) -> None:
        self.width = config.width
        self.mlp, self.experts = nn.MLP(config, "gelu"), nn.Experts(config, "gelu")
        router = Router(config.make_norm().eps, self.width)
        self.experts.router = nn.weight("ffn_gate_inp", "count", "width", kind=router, needed=True)
        shape = ("count", "width", "inner")
        self.experts.down = nn.weight("ffn_down_exps", *shape, kind=WeighedDown, needed=True)
        self.mlp_norm, self.mlp_post_norm = map(config.norm, ("ffn_norm", "post_ffw_norm_1"))
        self.experts_norm = config.norm("pre_ffw_norm_2")
        self.experts_post_norm = config.norm("post_ffw_norm_2")

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (rows, width) to (rows, width), with the residual added."""
        # The router normalises by itself, so it takes the states before `pre_ffw_norm_2`.
        ids, weights = self.experts.routing.choose(self.experts.router(x))
        weights = cast("WeighedDown", self.experts.down).scale_weights(weights, ids)
        chosen = self.experts.chosen(self.experts_norm(x), ids, weights)
        y = self.mlp_post_norm(self.mlp.forward(self.mlp_norm(x)))
        y = y.add(self.experts_post_norm(chosen))
        return y if residual is None else residual.add(y)


class Gemma4Layer(nn.Layer):
    """A layer with norms before and after each block, then the layer's input and a scale."""

    layer_input: LayerInput | None = None
    scale: Tensor | None = nn.weight("layer_output_scale.weight", 1)

    def __init__(self, config: nn.LayerConfig, mixer: nn.Mixer) -> None:
        routed = "ffn_gate_inp.weight" in config
        mlp = MLPAndExperts(config) if routed else nn.MLP(config, "gelu")
        # Network and experts have norms of their own, which `MLPAndExperts` applies.
        before = ("attn_norm", None if routed else "ffn_norm")
        super().__init__(config, mixer, mlp, before=before, after=AFTER)
        if config.config.uint(INPUT, 0):
            self.layer_input = LayerInput(config)

    def forward(self, x: Tensor, batch: Batch, inputs: Tensor | None = None) -> Tensor:
        """Map (tokens, width) to the same shape, with the layer's (tokens, cols) inputs."""
        x = super().forward(x, batch)
        if self.layer_input is not None and inputs is not None:
            inputs = batch.select_outputs(inputs) if self.last else inputs
            x = x.add(self.layer_input(x, inputs))
        return x if self.scale is None else x.mul(self.scale)


@architecture("gemma4")
class Gemma4(Gemma):
    """Gemma 4, with inputs for every layer in small models, and experts in large ones."""

    steerable = True
    inputs_of_layers: LayerInputs | None = None

    def __init__(self, backend: Backend) -> None:
        if backend.config.uint(INPUT, 0):
            vocabulary = backend.require("token_embd.weight").shape[0]
            self.inputs_of_layers = LayerInputs(backend.config, vocabulary)
        super().__init__(backend)

    @cached_property
    def local_rope(self) -> nn.Rotary:
        """Return the rotation of layers with a window: all pairs of their narrower heads."""
        dims = self.config.uint("rope.dimension_count_swa", self.rope.options.dims)
        base = self.config.float("rope.freq_base_swa", 10000.0)
        return nn.Rotary(nn.RopeOptions(dims, base))

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Gemma 3's layer with an input, experts and a scale where the file has them."""
        return Gemma4Layer(config, attention(config, self.rope, self.local_rope))

    def hidden(self, batch: Batch) -> Tensor:
        """Return the states of the output rows after the last norm."""
        x = self.embed(batch)
        layers = cast("Sequence[Gemma4Layer]", self.layers)
        make_inputs = self.inputs_of_layers
        inputs = [None] * len(layers) if make_inputs is None else make_inputs(x, batch.tokens)
        for i, (layer, own) in enumerate(zip(layers, inputs, strict=True)):
            x = self.add_direction(i, layer.forward(x, batch, own))
        return self.normalise(x)
