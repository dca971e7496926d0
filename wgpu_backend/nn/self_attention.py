"""Attention of tokens to those before them, or to all of their text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import numpy as np

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.attention import Temperature, attend
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import CacheEntry, LayerShape, keep_keys
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import HeadLayerNorm, Linear, Norm, RMSNorm, fused_linear
from wgpu_backend.nn.module import Module, weight
from wgpu_backend.nn.rope import Rotary

GateOf = Literal["sigmoid", "softplus"]
NormOf = Literal["head", "each head", "all heads"]


class SelfAttention(Module):
    """Grouped-query attention (Ainslie et al. 2023) with rotated queries and keys.

    Biases and sinks are those that the file has; ``attn_qkv``, where it has that, stands for
    ``attn_q``, ``attn_k`` and ``attn_v`` below each other.

    Parameters
    ----------
    config : LayerConfig
    rope : Rotary or None
        None where positions come otherwise, or not at all.
    window : int or None
        Positions that a token sees, itself included; 0 for all, None for what the file lists by
        layer, if it does.
    chunk : int
        A token sees what is in its chunk of so many positions; 0 for all.
    causal : bool
        Whether tokens see none that come later; in an `Encoder` they do.
    symmetric_window : int
        Where they do: half of this is seen on either side; 0 for all.
    distance_bias : callable or None
        Makes what is added to scores by distance, (heads, 2 * reach + 1), in the graph of a batch.
    alibi : float
        Largest exponent of ALiBi's slopes; 0 for none.
    temperature : Temperature or None
        How queries grow with their position.
    softcap : float
        Bound of scores; 0 for none.
    scale : float or None
        Factor of scores; None for ``attention.scale`` of the file, or ``head ** -0.5``.
    qk_norm : str or None
        What of queries and keys is normalised: ``"head"`` with the same weights for every head,
        ``"each head"`` with weights of its own, ``"all heads"`` together.
    norm_after_rope : bool
        Whether that comes after the rotation.
    clamp : float
        Bound of queries, keys and values; 0 for none.
    clamps_normed : bool
        Whether queries and keys are normalised before they are bounded.
    gate : str or None
        Activation of a gate of what is attended to, ``"sigmoid"`` or ``"softplus"``: for every
        value or for every head, as the file has it. Qiu et al. 2025, "Gated Attention", §2.2.
    output_norm : str or None
        Name of a norm before the output projection.

    Raises
    ------
    ModelError
        Heads are not a multiple of KV heads, or a key is missing.
    """

    joined: Linear | None = None
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    output_norm: Norm | None = None
    gate: Linear | None = None
    sinks: Tensor | None = weight("attn_sinks.weight", "heads")

    def __init__(
        self,
        config: LayerConfig,
        rope: Rotary | None,
        *,
        window: int | None = None,
        chunk: int = 0,
        causal: bool = True,
        symmetric_window: int = 0,
        distance_bias: Callable[[Batch], Tensor] | None = None,
        alibi: float = 0.0,
        temperature: Temperature | None = None,
        softcap: float = 0.0,
        scale: float | None = None,
        qk_norm: NormOf | None = None,
        norm_after_rope: bool = False,
        clamp: float = 0.0,
        clamps_normed: bool = False,
        gate: GateOf | None = None,
        output_norm: str | None = None,
    ) -> None:
        self.layer, self.width = config.index, config.width
        self.eps = config.make_norm().eps
        if window is None:
            window = config.listed_window() if causal and not chunk else 0
        self.rope = rope if config.rotated else None
        self.window, self.softcap, self.clamp = window, softcap, clamp
        self.clamps_normed = clamps_normed
        self._sizes(config)
        self.chunk, self.alibi, self.temperature = chunk, alibi, temperature
        self.causal, self.symmetric_window = causal, symmetric_window
        self.distance_bias = distance_bias
        self.scale = scale or config.float("attention.scale", 0.0) or self.head**-0.5
        self.norm_after_rope = norm_after_rope
        if qk_norm is not None:
            self.query_norm = self._norm(config, "attn_q_norm", qk_norm, self.heads)
            self.key_norm = self._norm(config, "attn_k_norm", qk_norm, self.kv_heads)
        self.activation = gate
        if gate is not None:
            rows = (config.get_shape("attn_gate.weight") or (0,))[0]
            self.gates = rows if rows == self.heads else self.outputs
            self.gate = weight("attn_gate", "gates", "width", needed=True)
        self.output_norm = config.norm(output_norm, "outputs")

    def _sizes(self, config: LayerConfig) -> None:
        """Read how many heads there are, of how many values."""
        heads = self.heads = config.uint("attention.head_count", at_least=1)
        kv_heads = self.kv_heads = config.uint("attention.head_count_kv", heads, at_least=1)
        if heads % kv_heads:
            needs = f"a multiple of attention.head_count_kv, which is {kv_heads}"
            raise config.fail(f"attention.head_count is {heads}, needs {needs}")
        self.head = self._length(config, "attention.key_length")
        self.value_head = self._length(config, "attention.value_length")
        self.queries, self.keys = heads * self.head, kv_heads * self.head
        self.values, self.outputs = kv_heads * self.value_head, heads * self.value_head
        self.rows = self.queries + self.keys + self.values

    def _length(self, config: LayerConfig, key: str) -> int:
        """Values of a head, of which layers with a window may have a number of their own."""
        own = config.uint(f"{key}_swa", 0) if self.window else 0
        return own or config.uint(key, self.width // self.heads, at_least=1)

    def _norm(self, config: LayerConfig, name: str, of: NormOf, heads: int) -> Norm:
        if of == "each head":
            norm = HeadLayerNorm(config.make_norm().eps)
            return weight(name, heads, self.head, kind=norm, needed=True)
        return config.norm(name, self.head if of == "head" else heads * self.head)

    def declare(self, has: Callable[[str], bool]) -> None:
        """Queries, keys and values have weights of their own, or one together."""
        if has("attn_qkv.weight"):
            self.joined = weight("attn_qkv", "rows", "width")
        else:
            self.query = weight("attn_q", "queries", "width")
            self.key = weight("attn_k", "keys", "width")
            self.value = weight("attn_v", "values", "width")
        output = "attn_o" if has("attn_o.weight") else "attn_output"
        self.output = weight(output, "width", "outputs")

    @property
    def cached(self) -> CacheEntry:
        """What a position takes in the cache, for how long, and how its keys move."""
        turn = keep_keys if self.rope is None else partial(self._rotate_keys, self.rope)
        return LayerShape(self.keys, self.values, window=self.window, chunk=self.chunk, turn=turn)

    def _rotate_keys(self, rope: Rotary, keys: Tensor, by: int) -> Tensor:
        """Keys (positions, keys) of the cache as they are so many positions further on."""
        y = keys.reshape(-1, self.kv_heads, self.head)
        if not self.norm_after_rope or self.key_norm is None:
            return rope.rotate_by(y, by).reshape(*keys.shape)
        # A mean square does not change by rotation, so the norm's weights are all there is to it.
        # What a weight of 0 has hidden stays hidden.
        weight = cast("RMSNorm", self.key_norm).weight
        none, one = (keys.context.from_numpy(np.full(1, x, np.float32)) for x in (0, 1))
        plain = none.not_equal(weight).where(weight, one)
        return rope.rotate_by(y.div(plain), by).mul(weight).reshape(*keys.shape)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Attend: (tokens, width) to (tokens, heads * value_head), for `project`."""
        q, k, v = self.project_heads(x)
        q, k = self.apply_positions(q, k, batch)
        y = attend(
            self.layer,
            q,
            k,
            v,
            batch,
            scale=self.scale,
            window=self.window,
            chunk=self.chunk,
            causal=self.causal,
            symmetric_window=self.symmetric_window,
            bias=None if self.distance_bias is None else self.distance_bias(batch),
            alibi=self.alibi,
            temperature=self.temperature,
            softcap=self.softcap,
            sinks=self.sinks,
        )
        return y if self.gate is None else self._apply_gate(self.gate(x), y)

    def _apply_gate(self, gate: Tensor, y: Tensor) -> Tensor:
        """(tokens, heads * value_head) behind a gate for each value, or for each head."""
        gate = gate.sigmoid() if self.activation == "sigmoid" else gate.softplus()
        heads = (y.shape[0], self.heads, self.value_head)
        gates = gate.reshape(y.shape[0], self.heads, -1)
        return y.reshape(*heads).mul(gates).reshape(*y.shape)

    def project_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (tokens, heads, head), keys and values (tokens, kv_heads, …) of rows."""
        tokens = x.shape[0]
        q, k, v = self._projections(x)
        if self.clamp:
            v = v.clamp(-self.clamp, self.clamp)
            q, k = (q, k) if self.clamps_normed else self._clamp(q, k)
        return (
            q.reshape(tokens, self.heads, self.head),
            k.reshape(tokens, self.kv_heads, self.head),
            v.reshape(tokens, self.kv_heads, self.value_head),
        )

    def _clamp(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q.clamp(-self.clamp, self.clamp), k.clamp(-self.clamp, self.clamp)

    def _projections(self, x: Tensor) -> list[Tensor]:
        if self.joined is None:
            return fused_linear(x, self.query, self.key, self.value)
        return self.joined(x).chunk_sections(-1, self.queries, self.keys, self.values)

    def apply_positions(self, q: Tensor, k: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Queries and keys, normalised and rotated."""
        if not self.norm_after_rope:
            q, k = self._normalise(q, self.query_norm), self._normalise(k, self.key_norm)
        if self.clamp and self.clamps_normed:
            q, k = self._clamp(q, k)
        if self.rope is not None:
            positions = self.rope.positions(batch)
            q, k = self.rope(q, positions), self.rope(k, positions)
        if self.norm_after_rope:
            q, k = self._normalise(q, self.query_norm), self._normalise(k, self.key_norm)
        return q, k

    def _normalise(self, x: Tensor, norm: Norm | None) -> Tensor:
        """Heads behind a norm; one over all heads has a weight that long."""
        if norm is None:
            return x
        tokens, heads, head = x.shape
        if norm.shape == (heads * head,) and heads > 1:
            return norm(x.reshape(tokens, -1)).reshape(tokens, heads, head)
        return norm(x)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map what `forward` gives to (tokens, width), and add `residual`."""
        return self.output(y if self.output_norm is None else self.output_norm(y), residual)
