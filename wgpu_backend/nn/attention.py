"""Attention of a batch over its cache: self-attention, latent attention and cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import numpy as np

from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Attended, Batch
from wgpu_backend.nn.kvcache.layers import (
    CacheEntry,
    EncodedShape,
    LayerCache,
    LayerShape,
    keep_keys,
)
from wgpu_backend.nn.layer import DecoderLayer, FeedForward
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import HeadLayerNorm, HeadLinear, Linear, Norm, RMSNorm, fused_linear
from wgpu_backend.nn.module import Module, old_names, weight
from wgpu_backend.nn.rope import Rotary
from wgpu_backend.ops.attention.paged import attention
from wgpu_backend.ops.attention.paged_options import Temperature

__all__ = ["Temperature", "attend"]


def attend(
    layer: int,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    batch: Batch,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    causal: bool = True,
    chunk: int = 0,
    symmetric_window: int = 0,
    alibi: float = 0.0,
    temperature: Temperature | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    v_cols: int = 0,
) -> Tensor:
    """Store the batch's keys and values, and attend to all positions that each token may see.

    Parameters
    ----------
    layer : int
        Layer of the cache.
    q : (tokens, heads, k_cols), f32
    k : (tokens, kv_heads, k_cols), f32, or None
        None where the layer reads the keys of another layer or of an encoder.
    v : (tokens, kv_heads, v_cols), f32, or None
        None where values are the first columns of keys, see `v_cols`.
    scale : float
        Factor of scores.
    window : int
        Positions that a token attends to, itself included; 0 for the window in `cache_layers`.
    softcap : float
        Soft cap of scores; 0 for none.
    causal : bool
        Whether tokens attend to earlier tokens and themselves; otherwise up to `Batch.ends`.
    chunk : int
        A token attends within its chunk of so many positions; 0 for the chunk in `cache_layers`.
    symmetric_window : int
        With ``causal=False``: the window around a token, half on either side; 0 for all.
    alibi : float
        Largest exponent of ALiBi's slopes; 0 for no ALiBi.
    temperature : Temperature or None
        Scale of queries by their position.
    sinks : (heads,), or None
        Extra score of each head, without a value.
    bias : (heads, 2 * reach + 1), or None
        Added to scores by distance.
    v_cols : int
        Number of leading columns of keys that are the values; 0 if values are separate.

    Returns
    -------
    (tokens, heads * v_cols), f32

    Raises
    ------
    ShapeError
        A temperature is combined with a window or chunk: it depends on positions in the sequence,
        and a cache with a window counts positions from its first block.
    """
    # A window or chunk of 0 means the one that the layer's cache entry has.
    stored = batch.key_values(layer) if k is None else batch.put(layer, k, v)
    window, chunk = window or stored.window, chunk or stored.chunk
    if temperature is not None and (window or chunk):
        raise ShapeError(
            f"attend: a temperature with a window of {window} and chunks of {chunk}; multiply "
            "the queries by its factor instead"
        )
    others = {
        "alibi": alibi != 0,
        "temperature": temperature is not None,
        "a bias by distance": bias is not None,
    }
    # Attention weights are recomputed from these values on request, which scores with further terms
    # do not allow.
    besides = ", ".join(name for name, there in others.items() if there)
    batch.attended[layer] = Attended(
        q, k, scale, softcap, window, chunk, symmetric_window, causal, sinks, besides
    )
    y = attention(
        q,
        stored.keys,
        None if v_cols else stored.values,
        stored.pages,
        scale=scale,
        # The width of another layer's keys tells how many heads they have.
        kv_heads=stored.keys.shape[1] // q.shape[2] if k is None else k.shape[1],
        longest=stored.longest,
        window=window,
        softcap=softcap,
        causal=causal,
        chunk=chunk,
        symmetric_window=symmetric_window,
        alibi=alibi,
        temperature=temperature,
        sinks=sinks,
        bias=bias,
        v_cols=v_cols,
    )
    return cast("Tensor", y).reshape(q.shape[0], -1)


# Self-attention: tokens attend to earlier tokens, or to all of their text.


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
            # An encoder has `symmetric_window` instead, and a chunk already limits a token's view.
            window = config.listed_window() if causal and not chunk else 0
        self.rope = rope if config.has_rope else None
        self.window, self.softcap, self.clamp = window, softcap, clamp
        self.clamps_normed = clamps_normed
        self._sizes(config)
        self.chunk, self.alibi, self.temperature = chunk, alibi, temperature
        self.causal, self.symmetric_window = causal, symmetric_window
        self.distance_bias = distance_bias
        # Files of some converters have 0 where a model has the usual scale.
        self.scale = scale or config.float("attention.scale", 0.0) or self.head**-0.5
        self.norm_after_rope = norm_after_rope
        if qk_norm is not None:
            self.query_norm = self._norm(config, "attn_q_norm", qk_norm, self.heads)
            self.key_norm = self._norm(config, "attn_k_norm", qk_norm, self.kv_heads)
        self.activation = gate
        if gate is not None:
            # No key says whether gates are of heads or of values; the number of rows does.
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
        # Gemma 4's layers with a window have narrower heads than those with full attention.
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
        # T5's files have the short name.
        output = "attn_o" if has("attn_o.weight") else "attn_output"
        self.output = weight(output, "width", "outputs")

    @property
    def cached(self) -> CacheEntry:
        """Return the cache entry: sizes of keys and values, window, and rotation by a shift."""
        # A shift of the context moves cached keys to other positions.
        turn = keep_keys if self.rope is None else partial(self._rotate_keys, self.rope)
        return LayerShape(self.keys, self.values, window=self.window, chunk=self.chunk, turn=turn)

    def _rotate_keys(self, rope: Rotary, keys: Tensor, by: int) -> Tensor:
        """Rotate cached keys (positions, keys) by `by` positions."""
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
        # The last axis is 1 where a gate is of a whole head, and then broadcasts to its values.
        gates = gate.reshape(y.shape[0], self.heads, -1)
        return y.reshape(*heads).mul(gates).reshape(*y.shape)

    def project_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (tokens, heads, head), keys and values (tokens, kv_heads, …) of rows."""
        tokens = x.shape[0]
        q, k, v = self._projections(x)
        if self.clamp:
            # `clamps_normed` concerns queries and keys: values have no norm.
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
        # A norm's weights and a rotation do not commute, so the order has to be that of training.
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
        """Normalise each head, or all heads of a token as one row if the weight is that long."""
        if norm is None:
            return x
        tokens, heads, head = x.shape
        # One weight per value of a head is broadcast to all heads; one per value of a row needs the
        # row.
        if norm.shape == (heads * head,) and heads > 1:
            return norm(x.reshape(tokens, -1)).reshape(tokens, heads, head)
        return norm(x)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y if self.output_norm is None else self.output_norm(y), residual)


# Latent attention: heads make keys and values from one narrow vector per position.


class LatentAttention(Module):
    """Multi-head latent attention: DeepSeek-AI 2024, "DeepSeek-V2", §2.1.

    With ``attn_k_b`` and ``attn_v_b`` the cache has a latent vector, and a rotated part of a key
    that all heads share. The key projection is absorbed into the queries (§2.1.2). Older files
    have ``attn_kv_b``: keys and values of every head are computed and cached.

    Parameters
    ----------
    rope : Rotary or None
        Rotation of the shared part.
    scale : float or None
        Factor of scores; None for ``head ** -0.5``.
    temperature : Temperature or None
        Scale of queries by their position.
    """

    query: Linear | None = None
    query_down: Linear
    query_norm: Norm
    query_up: Linear
    latent: Linear = weight("attn_kv_a_mqa", "latent_rows", "width")
    latent_norm: Norm
    key_up: HeadLinear | None = None
    value_up: HeadLinear
    key_value_up: Linear
    output: Linear = weight("attn_output", "width", "outputs")

    def __init__(
        self,
        config: LayerConfig,
        rope: Rotary | None,
        *,
        scale: float | None = None,
        temperature: Temperature | None = None,
    ) -> None:
        self.layer, self.width, self.rope = config.index, config.width, rope
        self.temperature = temperature
        heads = self.heads = config.uint("attention.head_count", at_least=1)
        self.rank = config.uint("attention.kv_lora_rank", at_least=1)
        self.query_rank = config.uint("attention.q_lora_rank", 0) or None
        self.head = self._length(config, "key")
        self.value_head = self._length(config, "value")
        self.shared = config.uint("rope.dimension_count", at_least=1)
        # Values of a key that are not shared between heads.
        self.own = self.head - self.shared
        if self.own < 1:
            raise config.fail(
                f"keys of {self.head} values, of which {self.shared} are rotated, needs fewer"
            )
        # The whole head counts, its shared part included, even where keys are absorbed.
        self.scale = self.head**-0.5 if scale is None else scale
        self.queries, self.outputs = heads * self.head, heads * self.value_head
        self.latent_rows = self.rank + self.shared
        self.rows = heads * (self.own + self.value_head)
        usual = config.make_norm()
        eps = config.float("attention.latent_norm_rms_epsilon", usual.eps)
        self._norms = tuple(
            weight(name, size, kind=type(usual)(eps), needed=True)
            for name, size in (("attn_q_a_norm", "query_rank"), ("attn_kv_a_norm", "rank"))
        )

    def _length(self, config: LayerConfig, part: str) -> int:
        """Return the size of a head's keys or values after projection from latents."""
        usual = config.uint(f"attention.{part}_length", self.width // self.heads)
        return config.uint(f"attention.{part}_length_mla", usual, at_least=1)

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag the weights the file has: queries through a latent or not, keys absorbed or not."""
        if has("attn_q.weight"):
            self.query = weight("attn_q", "queries", "width")
        else:
            self.query_down = weight("attn_q_a", "query_rank", "width")
            self.query_norm = self._norms[0]
            self.query_up = weight("attn_q_b", "queries", "query_rank")
        self.latent_norm = self._norms[1]
        if has("attn_kv_b.weight"):
            self.key_value_up = weight("attn_kv_b", "rows", "rank")
        else:
            self.key_up = weight("attn_k_b", "heads", "rank", "own", needed=True)
            self.value_up = weight("attn_v_b", "heads", "value_head", "rank")

    @property
    def cached(self) -> LayerCache:
        """Return the cache entry: a latent and the shared key, or keys and values of every head."""
        turn = keep_keys if self.rope is None else partial(self._rotate_keys, self.rope)
        if self.key_up is not None:
            # Values are the first columns of keys, so that the cache has each latent once.
            return LayerShape(self.latent_rows, None, turn=turn)
        return LayerShape(self.queries, self.outputs, turn=turn)

    def _rotate_keys(self, rope: Rotary, keys: Tensor, by: int) -> Tensor:
        """Rotate the last columns of each head's cached keys by `by` positions."""
        plain = self.rank if self.key_up is not None else self.own
        heads = keys.reshape(keys.shape[0], -1, plain + self.shared)
        # Only the shared part encodes a position, so a shift leaves the others as they are.
        own, shared = heads.chunk_sections(-1, plain, self.shared)
        return own.concat(rope.rotate_by(shared.contiguous(), by), axis=2).reshape(*keys.shape)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Attend: (tokens, width) to (tokens, heads * value_head), for `project`."""
        query = self.query_down if self.query is None else self.query
        queries, both = fused_linear(x, query, self.latent)
        latents, shared = both.chunk_sections(-1, self.rank, self.shared)
        # In the published code only the latent has a norm; the shared key has none.
        latents = self.latent_norm(latents)
        own, rotated = self._heads(queries).chunk_sections(-1, self.own, self.shared)
        shared = self._rotate(shared.reshape(-1, 1, self.shared), batch)
        rotated = self._rotate(rotated, batch)
        if self.key_up is None:
            return self._attend_heads(own, rotated, latents, shared, batch)
        return self._attend_latents(self.key_up, own, rotated, latents, shared, batch)

    def _heads(self, queries: Tensor) -> Tensor:
        """Return queries as (tokens, heads, head), through their latents if there are any."""
        if self.query is None:
            queries = self.query_up(self.query_norm(queries))
        return queries.reshape(-1, self.heads, self.head)

    def _rotate(self, x: Tensor, batch: Batch) -> Tensor:
        return x if self.rope is None else self.rope(x, batch.positions)

    def _attend_latents(
        self,
        key_up: HeadLinear,
        own: Tensor,
        rotated: Tensor,
        latents: Tensor,
        shared: Tensor,
        batch: Batch,
    ) -> Tensor:
        """Attend to the latents themselves, then project each head's result to values."""
        tokens = own.shape[0]
        # (tokens, heads, rank): the key projection applied to the queries (§2.1.2).
        absorbed = key_up(own.permute(1, 0, 2)).permute(1, 0, 2)
        # Latents come first, because `v_cols` takes the leading columns of keys as values.
        q = absorbed.concat(rotated, axis=2)
        k = latents.reshape(tokens, 1, self.rank).concat(shared, axis=2)
        y = attend(
            self.layer, q, k, None, batch,
            scale=self.scale, temperature=self.temperature, v_cols=self.rank,
        )  # fmt: skip
        seen = y.reshape(tokens, self.heads, self.rank).permute(1, 0, 2)
        return self.value_up(seen).permute(1, 0, 2).reshape(tokens, self.outputs)

    def _attend_heads(
        self, own: Tensor, rotated: Tensor, latents: Tensor, shared: Tensor, batch: Batch
    ) -> Tensor:
        """Make keys and values of every head from the latents, and attend to them."""
        tokens = own.shape[0]
        made = self.key_value_up(latents).reshape(tokens, self.heads, -1)
        keys, values = made.chunk_sections(-1, self.own, self.value_head)
        # The attention kernel reads whole heads, so each gets a copy of the shared key.
        k = keys.concat(shared.repeat(1, self.heads), axis=2)
        q = own.concat(rotated, axis=2)
        return attend(
            self.layer, q, k, values, batch, scale=self.scale, temperature=self.temperature
        )

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y, residual)


# Cross-attention of a decoder to an encoder's states.


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

    Attributes
    ----------
    picture : int
        Most positions of a picture, see `EncodedShape`.
    """

    picture: int = 0
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
        return EncodedShape(self.keys, self.values, self.picture)

    def project_states(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, (tokens, cols) each, of an encoder's states (tokens, width)."""
        key, value = fused_linear(states, self.key, self.value)
        return key, value

    def make_queries(self, x: Tensor) -> Tensor:
        """Return queries of rows: (tokens, heads, head)."""
        return self.query(x).reshape(x.shape[0], self.heads, self.head)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Attend: (tokens, width) to (tokens, heads * value_head), for `project`."""
        stored = batch.encoder_key_values(self.layer)
        y = attention(
            self.make_queries(x),
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
