"""Latent attention: heads make keys and values from one narrow vector per position."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.attention import Temperature, attend
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import LayerCache, LayerShape, keep_keys
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import HeadLinear, Linear, Norm, fused_linear
from wgpu_backend.nn.module import Module, weight
from wgpu_backend.nn.rope import Rotary


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
            raise config.fail(f"keys of {self.head} values, of which {self.shared} are rotated")
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
            return LayerShape(self.latent_rows, None, turn=turn)
        return LayerShape(self.queries, self.outputs, turn=turn)

    def _rotate_keys(self, rope: Rotary, keys: Tensor, by: int) -> Tensor:
        """Rotate the last columns of each head's cached keys so many positions further."""
        plain = self.rank if self.key_up is not None else self.own
        heads = keys.reshape(keys.shape[0], -1, plain + self.shared)
        own, shared = heads.chunk_sections(-1, plain, self.shared)
        return own.concat(rope.rotate_by(shared.contiguous(), by), axis=2).reshape(*keys.shape)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Attend: (tokens, width) to (tokens, heads * value_head), for `project`."""
        query = self.query_down if self.query is None else self.query
        queries, both = fused_linear(x, query, self.latent)
        latents, shared = both.chunk_sections(-1, self.rank, self.shared)
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
        k = keys.concat(shared.repeat(1, self.heads), axis=2)
        q = own.concat(rotated, axis=2)
        return attend(
            self.layer, q, k, values, batch, scale=self.scale, temperature=self.temperature
        )

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y, residual)
