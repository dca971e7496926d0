"""Helpers for ops that only move values: the types they take, and the WGSL snippets that move them.

A value travels as its bits, so NaNs, halves and integers of any width are unchanged.
"""

from __future__ import annotations

from wgpu_backend.dtypes import PLAIN, DType
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.check import require_dtype

_WIDTHS = {1: "byte", 2: "half", 4: "word", 8: "wide"}


def width(dtype: DType) -> str:
    """Return the suffix of the type's snippets in ``shaders/formats/bits_load`` and similar."""
    return _WIDTHS[dtype.block_nbytes]


def require_plain(op: str, name: str, node: Node) -> None:
    """Raise DTypeError unless the operand's type is a plain one."""
    require_dtype(op, name, node, PLAIN)


def moving(dtype: DType, *operands: str) -> dict[str, str]:
    """Return the choices of a shader that moves four values of a type at a time from `operands`."""
    snippet = width(dtype)
    loads = dict.fromkeys(operands, f"formats/bits_load/{snippet}")
    return {**loads, "y": f"formats/bits_store4/{snippet}"}


def putting(dtype: DType, *operands: str) -> dict[str, str]:
    """Return the choices of a shader that writes single values of a type to any place."""
    return {**moving(dtype, *operands), "y": f"formats/bits_store/{width(dtype)}"}
