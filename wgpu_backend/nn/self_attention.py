"""Self-attention: tokens attend to earlier tokens, or to all of their text."""

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
from wgpu_backend.nn.module import Module, old_names, weight
from wgpu_backend.nn.rope import Rotary

GateOf = Literal["sigmoid", "softplus"]
NormOf = Literal["head", "each head", "all heads"]


@old_names(heads_of="project_heads", positioned="apply_positions")
class SelfAttention(Module):
    """Grouped-query attention (Ainslie et al. 2023) with rotated queries and keys.

    Biases and sinks are used where the file has them. ``attn_qkv``, where the file has it, holds
    the rows of ``attn_q``, ``attn_k`` and ``attn_v``.

    Parameters
    ----------
    rope : Rotary or None
        None for other positional encodings, or none.
    window : int or None
        Positions that a token attends to, itself included; 0 for all, None for the file's list by
        layer, if it has one.
    chunk : int
        A token attends within its chunk of so many positions; 0 for all.
    causal : bool
        Whether tokens attend to earlier tokens only; False in an `Encoder`.
    symmetric_window : int
        With ``causal=False``: the window around a token, half on either side; 0 for all.
    distance_bias : callable or None
        Returns the bias of scores by distance, (heads, 2 * reach + 1), in the graph of a batch.
    alibi : float
        Largest exponent of ALiBi's slopes; 0 for no ALiBi.
    temperature : Temperature or None
        Scale of queries by their position.
    softcap : float
        Soft cap of scores; 0 for none.
    scale : float or None
        Factor of scores; None for ``attention.scale`` of the file, or ``head ** -0.5``.
    qk_norm : str or None
        Norm of queries and keys: ``"head"`` with the same weights for every head, ``"each head"``
        with separate weights, ``"all heads"`` as one row.
    norm_after_rope : bool
        Whether that norm follows the rotation.
    clamp : float
        Bound of queries, keys and values; 0 for none.
    clamps_normed : bool
        Whether queries and keys are clamped after their norm instead of before.
    gate : str or None
        Activation of a gate of the attention's output, ``"sigmoid"`` or ``"softplus"``; one gate
        for every value or head, as the file has it. Qiu et al. 2025, "Gated Attention", §2.2.
    output_norm : str or None
        Name of a norm before the output projection.

    Raises
    ------
    ModelError
        The number of heads is not a multiple of that of KV heads, or a key is missing.
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
        self.rope = rope if config.has_rope else None
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
        """Read the number of heads and their sizes."""
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
        """Return the size of a head; layers with a window may have their own."""
        own = config.uint(f"{key}_swa", 0) if self.window else 0
        return own or config.uint(key, self.width // self.heads, at_least=1)

    def _norm(self, config: LayerConfig, name: str, of: NormOf, heads: int) -> Norm:
        if of == "each head":
            norm = HeadLayerNorm(config.make_norm().eps)
            return weight(name, heads, self.head, kind=norm, needed=True)
        return config.norm(name, self.head if of == "head" else heads * self.head)

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag separate weights for queries, keys and values, or one joint weight."""
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
        """Return the cache entry: sizes of keys and values, how long they stay, how they move."""
        turn = keep_keys if self.rope is None else partial(self._rotate_keys, self.rope)
        return LayerShape(self.keys, self.values, window=self.window, chunk=self.chunk, turn=turn)

    def _rotate_keys(self, rope: Rotary, keys: Tensor, by: int) -> Tensor:
        """Rotate cached keys (positions, keys) so many positions further."""
        y = keys.reshape(-1, self.kv_heads, self.head)
        if not self.norm_after_rope or self.key_norm is None:
            return rope.rotate_by(y, by).reshape(*keys.shape)
        # A rotation does not change the mean square, so only the norm's weights have to be undone.
        # Values that a weight of 0 has removed stay 0.
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
        """Multiply (tokens, heads * value_head) by a gate for each value, or for each head."""
        gate = gate.sigmoid() if self.activation == "sigmoid" else gate.softplus()
        heads = (y.shape[0], self.heads, self.value_head)
        gates = gate.reshape(y.shape[0], self.heads, -1)
        return y.reshape(*heads).mul(gates).reshape(*y.shape)

    def project_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (tokens, heads, head), keys and values (tokens, kv_heads, …) of rows."""
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
        """Normalise and rotate queries and keys."""
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
        """Normalise heads; a norm over all heads has a weight that long."""
        if norm is None:
            return x
        tokens, heads, head = x.shape
        if norm.shape == (heads * head,) and heads > 1:
            return norm(x.reshape(tokens, -1)).reshape(tokens, heads, head)
        return norm(x)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y if self.output_norm is None else self.output_norm(y), residual)
