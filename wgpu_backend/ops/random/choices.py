"""Random choices: random_bernoulli, random_categorical, random_permutation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec, broadcast_strides, extents
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.elementwise.arithmetic import add
from wgpu_backend.ops.elementwise.comparison import less
from wgpu_backend.ops.random.bits import random_bits
from wgpu_backend.ops.random.draws import random_gumbel, random_uniform
from wgpu_backend.ops.reduce.arguments import argmax
from wgpu_backend.ops.sampling.sorting import argsort
from wgpu_backend.ops.shape.copying import cast
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand, make_view

MOST_AXES = 8


def random_bernoulli(key: Node, p: float | Node = 0.5, shape: Sequence[int] | None = None) -> Node:
    """Draw true with a probability.

    Parameters
    ----------
    key : (2,)
        u32.
    p : float or (...), f32, f16 or bf16
        Probabilities, which broadcast to `shape`.
    shape : sequence of int or None
        None is that of `p`.

    Returns
    -------
    Tensor of that shape, bool.

    Raises
    ------
    ShapeError
        `p` does not broadcast to `shape`.
    """
    # A number becomes a constant.
    chances: Any = p
    if isinstance(p, Node):
        require_dtype("random_bernoulli", "p", p, FLOATS)
        shape = p.spec.shape if shape is None else extents("random_bernoulli: shape", shape)
        chances = _flat("random_bernoulli", p, shape)
    else:
        shape = extents("random_bernoulli: shape", () if shape is None else shape)
    u = random_uniform(key, (math.prod(shape),))
    # Draws are below 1, so that a probability of 1 is always met.
    return reshape_node(less(u, chances), shape)


def _flat(name: str, x: Node, shape: tuple[int, ...]) -> Node:
    """Broadcast `x` to a shape, and return its values as one row of f32."""
    own = x.spec.shape
    front = (1,) * (len(shape) - len(own)) + own
    require(
        len(front) == len(shape) and all(n in (1, m) for n, m in zip(front, shape, strict=True)),
        ShapeError,
        f"{name}: {own} does not broadcast to {shape}",
    )
    seen = Spec(shape, x.spec.dtype, broadcast_strides(x.spec, shape), x.spec.offset)
    flat = reshape_node(make_view(x, seen), (math.prod(shape),))
    return flat if flat.spec.dtype == F32 else cast(flat, dtype=F32)


def random_categorical(
    key: Node, logits: Node, axis: int = -1, num_samples: int | None = None
) -> Node:
    """Draw indices along an axis, with probabilities given by their logarithms.

    The index is that of the largest logit plus noise of a Gumbel distribution (Gumbel 1954).

    Parameters
    ----------
    key : (2,)
        u32.
    logits : (..., n, ...), f32, f16 or bf16, up to seven axes
        Any number may be added to all of a choice.
    num_samples : int or None
        How many to draw of each; they are then a last axis.

    Returns
    -------
    Tensor without the axis, i32, with `num_samples` one more in the end.

    Raises
    ------
    ShapeError
        There is no such axis, or it has no values.
    OptionError
        `num_samples` is negative.
    """
    require_rank("random_categorical", "logits", logits, 1, MOST_AXES - 1)
    require_dtype("random_categorical", "logits", logits, FLOATS)
    axis = logits.spec.axis(axis, "random_categorical")
    shape = logits.spec.shape
    if num_samples is not None:
        require(
            num_samples >= 0,
            OptionError,
            f"random_categorical: {num_samples} samples, needs 0 or more",
        )
        shape = (*shape, num_samples)
        # Each sample has noise of its own.
        logits = expand(reshape_node(logits, (*shape[:-1], 1)), shape)
    # The Gumbel-max trick: the index of the largest sum is drawn with those probabilities.
    noise = random_gumbel(key, (math.prod(shape),))
    noisy = add(noise, _flat("random_categorical", logits, shape))
    return argmax(reshape_node(noisy, shape), axis)


def random_permutation(key: Node, n: int) -> Node:
    """Draw a random order of the numbers from 0 up to `n`.

    Parameters
    ----------
    key : (2,)
        u32.
    n : int
        0 or more.

    Returns
    -------
    (n,), i32.
    """
    # Among equal words, which are rare, the order stays: the sort is stable.
    return argsort(random_bits(key, (n,)))
