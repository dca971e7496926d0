"""Operands and initial weights of layers.

Weights are drawn lazily, so loading others in their place costs nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wgpu_backend.array import devices
from wgpu_backend.array.base import ArrayBase, wrap
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.promotion import as_node, to_floats
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.shape import creation

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def as_floats(name: str, x: object) -> Node:
    """Return a node of floats of any type."""
    return to_floats(as_node(name, x))


def as_singles(name: str, x: object) -> Node:
    """Return a node in float32."""
    return convert(as_node(name, x), F32)


def as_optional(x: Array | None) -> Node | None:
    """Return the node of a parameter that may be missing."""
    return x.node if isinstance(x, ArrayBase) else None


def as_optional_singles(name: str, x: Array | None) -> Node | None:
    """Return a node in float32 of a parameter that may be missing."""
    return None if x is None else as_singles(name, x)


def require_width(name: str, x: Node, wanted: int) -> Node:
    """Raise ShapeError unless rows have the width of a layer."""
    if not x.spec.shape or x.spec.shape[-1] != wanted:
        raise ShapeError(f"{name}: input is {x.spec.shape}, needs {wanted} values a row")
    return x


# Each draw has a key of its own, or all weights would be equal.
_keys = itertools.count(1)


def draw(*shape: int, scale: float) -> Array:
    """Draw normally distributed numbers of a standard deviation; each call draws new ones."""
    key = next(_keys)
    return wrap(creation.random_normal.add_to(devices.session(), shape=shape, scale=scale, key=key))


def draw_weights(shape: Sequence[int]) -> Array:
    """Draw weights (outputs, ..., inputs) that keep about the variance of their inputs."""
    return draw(*shape, scale=1 / math.sqrt(max(math.prod(shape[1:]), 1)))
