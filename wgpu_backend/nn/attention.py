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
    """Put the batch's keys and values away, and attend to all that each token may see.

    Parameters
    ----------
    layer : int
        Layer of the cache.
    q : (tokens, heads, k_cols), f32
    k : (tokens, kv_heads, k_cols), f32, or None
        None where the layer reads what another one, or an encoder, has stored.
    v : (tokens, kv_heads, v_cols), f32, or None
        None where values are the first columns of keys, see `v_cols`.
    batch : Batch
    scale : float
        Factor of scores.
    window : int
        Positions that a token sees, itself included; 0 for what the model's `cache_layers` says.
    softcap : float
        Bound of scores; 0 for none.
    causal : bool
        Whether tokens see their past and themselves at least; others see up to their ends.
    chunk : int
        A token sees what is in its chunk of so many positions; 0 for what `cache_layers` says.
    symmetric_window : int
        With ``causal=False``: half of this is seen on either side; 0 for all.
    alibi : float
        Largest exponent of ALiBi's slopes; 0 for none.
    temperature : Temperature or None
        How queries grow with their position.
    sinks : (heads,), or None
        Further score of each head, which has no value.
    bias : (heads, 2 * reach + 1), or None
        Added to scores by distance.
    v_cols : int
        Columns of keys that are values, where those have no tensor of their own.

    Returns
    -------
    (tokens, heads * v_cols), f32

    Raises
    ------
    ShapeError
        Options exclude each other: a temperature goes by positions in the sequence, which a cache
        that drops what a window or chunk has left does not count.
    """
    stored = batch.key_values(layer) if k is None else batch.put(layer, k, v)
    window, chunk = window or stored.window, chunk or stored.chunk
    if temperature is not None and (window or chunk):
        raise ShapeError(
            f"attend: a temperature beside a window of {window} and chunks of {chunk}; multiply "
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
