"""Cross-attention of a decoder to an encoder's states."""

from __future__ import annotations

from typing import cast

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import EncodedShape, LayerCache
from wgpu_backend.nn.layer import DecoderLayer, FeedForward
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import Linear, Norm, fused_linear
from wgpu_backend.nn.module import Module, old_names, weight
from wgpu_backend.nn.self_attention import SelfAttention
from wgpu_backend.ops.attention.paged import attention


@old_names(encoded="project_states")
class CrossAttention(Module):
    """Attention of a decoder's tokens to an encoder's states (Vaswani 2017, §3.2.3).

    `project_states` makes keys and values once for each text; a pass of the decoder makes queries
    only. Biases are used where the file has them.

    Parameters
    ----------
    scale : float or None
        Factor of scores; None for ``head ** -0.5``.
    prefix : str
        Prefix of the names of the weights, after that of the layer.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear

    def __init__(
        self, config: LayerConfig, *, scale: float | None = None, prefix: str = "cross_attn_"
    ) -> None:
        self.layer, self.width = config.index, config.width
        heads = self.heads = config.uint("attention.head_count", at_least=1)
        kv_heads = self.kv_heads = config.uint("attention.head_count_kv", heads, at_least=1)
        if heads % kv_heads:
            needs = f"a multiple of attention.head_count_kv, which is {kv_heads}"
            raise config.fail(f"attention.head_count is {heads}, needs {needs}")
        self.head = config.uint("attention.key_length", self.width // heads, at_least=1)
        value_head = config.uint("attention.value_length", self.width // heads, at_least=1)
        self.queries, self.outputs = heads * self.head, heads * value_head
        self.keys, self.values = kv_heads * self.head, kv_heads * value_head
        self.scale = self.head**-0.5 if scale is None else scale
        self.query = weight(f"{prefix}q", "queries", "width")
        self.key = weight(f"{prefix}k", "keys", "width")
        self.value = weight(f"{prefix}v", "values", "width")
        self.output = weight(f"{prefix}o", "width", "outputs")

    @property
    def cached(self) -> EncodedShape:
        """Return the cache entry of the encoder's keys and values."""
        return EncodedShape(self.keys, self.values)

    def project_states(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, (tokens, cols) each, of an encoder's states (tokens, width)."""
        key, value = fused_linear(states, self.key, self.value)
        return key, value

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Attend: (tokens, width) to (tokens, heads * value_head), for `project`."""
        stored = batch.encoder_key_values(self.layer)
        y = attention(
            self.query(x).reshape(x.shape[0], self.heads, self.head),
            stored.keys,
            stored.values,
            stored.pages,
            scale=self.scale,
            kv_heads=self.kv_heads,
            longest=stored.longest,
        )
        return cast("Tensor", y).reshape(x.shape[0], -1)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y, residual)


class CrossLayer(DecoderLayer):
    """A pre-norm decoder layer with cross-attention between mixer and feed-forward network.

    ``x += mixer(norm(x))``, ``x += cross(norm(x))``, then ``x += mlp(norm(x))``.

    Parameters
    ----------
    before : three str
        Names of the norms.
    """

    mixer_norm: Norm
    cross_norm: Norm
    mlp_norm: Norm

    def __init__(
        self,
        config: LayerConfig,
        mixer: SelfAttention,
        cross: CrossAttention,
        mlp: FeedForward,
        *,
        before: tuple[str, str, str] = ("attn_norm", "cross_attn_norm", "ffn_norm"),
    ) -> None:
        self.width, self.last = config.width, config.last
        self.mixer, self.cross, self.mlp = mixer, cross, mlp
        self.mixer_norm, self.cross_norm, self.mlp_norm = map(config.norm, before)
        self._kept = (mixer.cached, cross.cached)

    @property
    def cached(self) -> LayerCache:
        """Return the cache entries of self-attention and cross-attention."""
        return self._kept

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer keeps the output rows only."""
        x = self.mixer.project(self.mixer.forward(self.mixer_norm(x), batch), x)
        y = self.cross.forward(self.cross_norm(x), batch)
        if self.last:
            x, y = batch.select_outputs(x), batch.select_outputs(y)
        x = self.cross.project(y, x)
        return self.mlp.forward(self.mlp_norm(x), x)
