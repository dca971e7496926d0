"""Random numbers from keys: ``wx.random``, as ``mx.random`` is.

A key is an array of two uint32, and one key always gives the same numbers, on every device.
Without a key, functions take the next one of a sequence that `seed` begins; a function that is
compiled should be given keys, since it is traced once.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.array import devices
from wgpu_backend.array.base import ArrayBase, constant, wrap
from wgpu_backend.array.conversion import convert, flatten_node
from wgpu_backend.array.promotion import as_node, common_shape, to_floats
from wgpu_backend.dtypes import F32, I32, U32, DType, as_dtype
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Extents, Shape, extents
from wgpu_backend.ops.random import bits as keys
from wgpu_backend.ops.random import choices, draws
from wgpu_backend.ops.random.bits import words

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

__all__ = [
    "bernoulli", "bits", "categorical", "gumbel", "key", "laplace", "normal", "permutation",
    "randint", "seed", "split", "truncated_normal", "uniform",
]  # fmt: skip


class _Sequence:
    """A sequence of keys, made by the host, so that a draw does not depend on earlier ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._words: NDArray[np.uint32] | None = None

    def begin(self, seed: int) -> None:
        """Begin a new sequence."""
        with self._lock:
            self._words = np.array(keys.key_words(seed), np.uint32)

    def following(self) -> Any:
        """Return the two words of the next key, and advance the sequence by a split."""
        if self._words is None:
            # As MLX: without a seed, the time in microseconds.
            self.begin(time.time_ns() // 1000 % 2**64)
        with self._lock:
            assert self._words is not None
            pair = words(self._words, 4).reshape(2, 2)
            self._words = pair[0]
            return pair[1]


_SEQUENCE = _Sequence()


def seed(seed: int) -> None:
    """Begin the sequence of keys that functions take without one."""
    _SEQUENCE.begin(seed)


def key(seed: int) -> Array:
    """Return the key of a number."""
    values = np.array(keys.key_words(seed), np.uint32)
    return wrap(constant(devices.session(), values, U32))


def split(key: Array, num: int = 2) -> Array:
    """Return new keys made of one, (num, 2)."""
    return wrap(keys.random_split(as_node("split", key), num))


def _key(name: str, given: Array | None) -> Node:
    if given is not None:
        return as_node(name, given)
    return constant(devices.session(), _SEQUENCE.following(), U32)


def _is_array(x: Any) -> bool:
    return isinstance(x, ArrayBase)


def _float(dtype: Any) -> DType:
    return F32 if dtype is None else as_dtype(dtype)


def bits(shape: Extents = (), width: int = 4, key: Array | None = None) -> Array:
    """Draw random bits as unsigned integers of `width` bytes."""
    return wrap(keys.random_bits(_key("bits", key), extents("bits", shape), width))


def uniform(
    low: Any = 0,
    high: Any = 1,
    shape: Extents | None = None,
    dtype: Any = None,
    key: Array | None = None,
) -> Array:
    """Draw numbers from `low` to `high`, excluded; both numbers or arrays that broadcast."""
    wanted, kind = _shape("uniform", shape, low, high), _float(dtype)
    source = _key("uniform", key)
    if not _is_array(low) and not _is_array(high):
        return wrap(draws.random_uniform(source, wanted, kind, low=float(low), high=float(high)))
    # Bounds that are arrays are applied afterwards; the op takes numbers.
    unit = wrap(draws.random_uniform(source, wanted, F32))
    return (unit * (high - low) + low).astype(kind)


def _shape(name: str, shape: Extents | None, *parameters: Any) -> Shape:
    """Return the shape of a draw: the given one, or that of the broadcast parameters."""
    if shape is not None:
        return extents(name, shape)
    return common_shape(name, [p.shape if isinstance(p, ArrayBase) else () for p in parameters])


def normal(
    shape: Extents = (),
    dtype: Any = None,
    loc: Any = 0.0,
    scale: Any = 1.0,
    key: Array | None = None,
) -> Array:
    """Draw from a normal distribution; mean and deviation may be arrays that broadcast."""
    wanted, kind, source = extents("normal", shape), _float(dtype), _key("normal", key)
    if not _is_array(loc) and not _is_array(scale):
        options = {"loc": float(loc), "scale": float(scale)}
        return wrap(draws.random_normal_key(source, wanted, kind, **options))
    return (wrap(draws.random_normal_key(source, wanted, F32)) * scale + loc).astype(kind)


def truncated_normal(
    lower: float, upper: float, shape: Extents = (), dtype: Any = None, key: Array | None = None
) -> Array:
    """Draw from a normal distribution between two bounds."""
    options = lower, upper, extents("truncated_normal", shape), _float(dtype)
    return wrap(draws.random_truncated_normal(_key("truncated_normal", key), *options))


def gumbel(shape: Extents = (), dtype: Any = None, key: Array | None = None) -> Array:
    """Draw from the standard Gumbel distribution."""
    wanted = extents("gumbel", shape)
    return wrap(draws.random_gumbel(_key("gumbel", key), wanted, _float(dtype)))


def laplace(
    shape: Extents = (),
    dtype: Any = None,
    loc: float = 0.0,
    scale: float = 1.0,
    key: Array | None = None,
) -> Array:
    """Draw from a Laplace distribution; `scale` is the mean distance from `loc`."""
    wanted, source = extents("laplace", shape), _key("laplace", key)
    return wrap(draws.random_laplace(source, wanted, _float(dtype), loc=loc, scale=scale))


def randint(
    low: Any, high: Any, shape: Extents | None = None, dtype: Any = None, key: Array | None = None
) -> Array:
    """Draw integers from `low` to `high`, excluded; both numbers or arrays that broadcast."""
    kind = I32 if dtype is None else as_dtype(dtype)
    wanted, source = _shape("randint", shape, low, high), _key("randint", key)
    if not _is_array(low) and not _is_array(high):
        return wrap(draws.random_randint(source, int(low), int(high), wanted, kind))
    from wgpu_backend.array.elementwise import floor

    unit = wrap(draws.random_uniform(source, wanted, F32))
    return (floor(unit * (high - low)) + low).astype(kind)


def bernoulli(p: Any = 0.5, shape: Extents | None = None, key: Array | None = None) -> Array:
    """Return true with probability `p`, a number or an array."""
    source, wanted = _key("bernoulli", key), _shape("bernoulli", shape, p)
    chance = to_floats(p.node) if isinstance(p, ArrayBase) else float(p)
    return wrap(choices.random_bernoulli(source, chance, wanted))


def categorical(
    logits: Array,
    axis: int = -1,
    shape: Extents | None = None,
    num_samples: int | None = None,
    key: Array | None = None,
) -> Array:
    """Draw indices along an axis with the given log-probabilities, int32.

    Parameters
    ----------
    logits : (..., n, ...)
    shape : tuple of int or None
        Shape of the result; the logits without their axis broadcast to it.
    num_samples : int or None
        Draws of each distribution, as a new last axis; not together with `shape`.
    key : (2,) uint32 or None
    """
    node = to_floats(as_node("categorical", logits))
    if shape is not None and num_samples is not None:
        raise ShapeError(
            f"categorical: shape {shape} and {num_samples} samples, needs only one of them"
        )
    wanted = None if shape is None else extents("categorical", shape)
    at = node.spec.axis(axis, "categorical")
    if 0 < node.spec.size == node.spec.shape[at]:
        drawn = (*node.spec.shape[:at], *node.spec.shape[at + 1 :]) if wanted is None else wanted
        drawn = drawn if num_samples is None else (*drawn, num_samples)
        # MLX draws a single number as those of several rows, so that the same keys agree.
        if drawn:
            return _draw_from_row(node, drawn, _key("categorical", key))
    if wanted is not None:
        from wgpu_backend.array.manipulation import broadcast_to, moveaxis

        last = moveaxis(wrap(node), axis, -1)
        node, axis = broadcast_to(last, (*wanted, last.shape[-1])).node, -1
    return wrap(choices.random_categorical(_key("categorical", key), node, axis, num_samples))


def _draw_from_row(logits: Node, shape: Shape, key: Node) -> Array:
    """Draw indices from a distribution by inverting its cumulative sums.

    MLX draws so from one row, and from several by adding noise; the same keys give the same places.
    """
    from wgpu_backend.array.elementwise import exp
    from wgpu_backend.array.operators import minimum
    from wgpu_backend.array.scans import cumsum
    from wgpu_backend.array.searching import searchsorted

    row = wrap(convert(flatten_node(logits), F32))
    # Less the maximum, so that no exponential overflows.
    sums = cumsum(exp(row - row.max()))
    numbers = wrap(draws.random_uniform(key, (math.prod(shape),), F32)) * sums[-1]
    found = searchsorted(sums, numbers, side="right").astype(I32)
    # A number rounded up to the last sum would be out of range.
    return minimum(found, row.size - 1).reshape(shape)


def permutation(x: Any, axis: int = 0, key: Array | None = None) -> Array:
    """Return the numbers up to `x` in a random order, or shuffle an axis of an array."""
    from wgpu_backend.array.searching import take

    source = _key("permutation", key)
    if not isinstance(x, ArrayBase):
        return wrap(choices.random_permutation(source, int(x)))
    node = x.node
    order = choices.random_permutation(source, node.spec.shape[node.spec.axis(axis, "permutation")])
    return take(wrap(node), wrap(order), axis=axis)
