"""How layers call ops: inputs as f32 or another float, results as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wgpu_backend.array.conversion import convert
from wgpu_backend.array.core import Core
from wgpu_backend.array.lifting import as_node, to_floats
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def as_floats(name: str, x: object) -> Node:
    """Node of floats of any type."""
    return to_floats(as_node(name, x))


def as_singles(name: str, x: object) -> Node:
    """Node in float32."""
    return convert(as_node(name, x), F32)


def as_optional(x: Array | None) -> Node | None:
    """Node of a parameter that may be missing."""
    return x.node if isinstance(x, Core) else None


def as_optional_singles(name: str, x: Array | None) -> Node | None:
    """Node in float32 of a parameter that may be missing."""
    return None if x is None else as_singles(name, x)


def require_width(name: str, x: Node, wanted: int) -> Node:
    """Refuse rows of another length than a layer's; ShapeError with both."""
    if not x.spec.shape or x.spec.shape[-1] != wanted:
        raise ShapeError(f"{name}: input is {x.spec.shape}, needs {wanted} values a row")
    return x
