"""Attention of a batch over its cache."""

from __future__ import annotations

from typing import cast

from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Attended, Batch
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
