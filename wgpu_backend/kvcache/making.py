"""The cache of a model's layers."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.dtypes import F16, DType
from wgpu_backend.kvcache.cache import Cache
from wgpu_backend.kvcache.layers import LayerCache
from wgpu_backend.kvcache.paged import PagedCache
from wgpu_backend.ml.executor import Executor


def cache_of(
    executor: Executor,
    layers: Sequence[LayerCache],
    sequences: int,
    positions: int,
    dtype: DType = F16,
) -> Cache:
    """Make the cache that layers need; see `Model.make_cache`."""
    return PagedCache(executor, layers, positions, dtype)
