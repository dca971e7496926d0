"""What ops that only move values share: the snippets for a type's width, and a value's bits."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BF16, F16, F32, I32, U32, DType
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.check import require_dtype

MOVABLE = (F32, F16, BF16, I32, U32)


def width(dtype: DType) -> str:
    """Name of the snippets in ``shaders/bits`` and its like that fit the type."""
    return "half" if dtype.block_nbytes == 2 else "word"


def require_movable(op: str, name: str, node: Node) -> str:
    """Return `width` of an operand's type; DTypeError where it has no plain one."""
    require_dtype(op, name, node, MOVABLE)
    return width(node.spec.dtype)


def bits_of(value: float, dtype: DType) -> int:
    """Bits of a number in a plain type, rounded to nearest even."""
    if dtype == BF16:
        bits = int(np.float32(value).view(np.uint32))
        return ((bits >> 16) | 0x40) if value != value else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    assert dtype.numpy is not None
    return int.from_bytes(np.array(value, dtype.numpy).tobytes(), "little")
