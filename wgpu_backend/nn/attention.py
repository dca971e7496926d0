"""Attention of a batch over its cache."""

from __future__ import annotations

from typing import cast

from wgpu_backend.batch import Batch
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.attention.paged import attention


def attend(
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: Batch,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Put the batch's keys and values away, and attend to all that each token may see.

    Parameters
    ----------
    layer : int
        Layer of the cache.
    q : (tokens, heads, k_cols), f32
    k : (tokens, kv_heads, k_cols), f32
    v : (tokens, kv_heads, v_cols), f32
    batch : Batch
    scale : float
        Factor of scores.
    window : int
        Positions that a token sees, itself included; 0 for all.
    softcap : float
        Bound of scores; 0 for none.

    Returns
    -------
    (tokens, heads * v_cols), f32
    """
    stored = batch.put(layer, k, v)
    y = attention(
        q,
        stored.keys,
        stored.values,
        stored.pages,
        scale=scale,
        kv_heads=k.shape[1],
        longest=stored.longest,
        window=window,
        softcap=softcap,
    )
    return cast("Tensor", y).reshape(q.shape[0], -1)
