"""Launches of ops on integers of 64 bits, which no register holds: pairs of words."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend.dtypes import BOOL, I64, U64
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast_strides
from wgpu_backend.ops.check import pad_to_4d, vec4s

WIDE = (I64, U64)


def wide(
    name: str, a: Node, b: Node, out: Spec, relations: Mapping[str, str | bool] | None = None
) -> Launch:
    """Launch of an op value by value, whose operation is in ``lib/wide``.

    Parameters
    ----------
    name : str
        Of the operation.
    a, b : (...), both i64 or both u64, shapes that broadcast
        The same for an operation of one operand.
    out : Spec
        Of the result; bool where two values are compared.
    relations : mapping
        Choices of a comparison.
    """
    compares = out.dtype == BOOL
    asked = {k: v for k, v in (relations or {}).items() if k in ("BELOW", "SAME", "ABOVE")}
    return Launch(
        out,
        {"a": a, "b": b},
        threads=vec4s(out.size),
        params={
            "size": out.size,
            "shape": pad_to_4d(out.shape, 1),
            "a_strides": pad_to_4d(broadcast_strides(a.spec, out.shape), 0),
            "b_strides": pad_to_4d(broadcast_strides(b.spec, out.shape), 0),
        },
        choices={
            "a": "formats/bits_load/wide",
            "b": "formats/bits_load/wide",
            "SIGNED": a.spec.dtype == I64,
            "A_DENSE": a.spec.is_dense and a.spec.shape == out.shape,
            "B_DENSE": b.spec.is_dense and b.spec.shape == out.shape,
            **(asked if compares else _storing(name)),
        },
        shader="ops/elementwise/wide_compare" if compares else "ops/elementwise/wide",
        in_place=("a", "b"),
        work=a.spec.nbytes + b.spec.nbytes + out.nbytes,
    )


def _storing(name: str) -> dict[str, str | bool]:
    return {"operation": f"lib/wide/{name}", "y": "formats/bits_store4/wide"}
