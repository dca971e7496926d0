"""Launches of elementwise ops: of one operand, of two that broadcast, and of 64-bit integers."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend.dtypes import BOOL, I8, I16, I32, I64, U8, U16, U32, U64, DType
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast, broadcast_strides
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require_dtype, require_rank, vec4s

# Integers that fit a register, and those that need two: WGSL has no 64-bit integers.
INTEGERS = (I32, U32, I16, U16, I8, U8)
WIDE = (I64, U64)
NUMBERS = (*FLOATS, *INTEGERS, *WIDE)


def unary(
    name: str,
    x: Node,
    allowed: tuple[DType, ...] = FLOATS,
    choices: Mapping[str, str | bool] | None = None,
    result: DType | None = None,
) -> Launch:
    """Return the launch of an op whose WGSL builds on ``lib/elementwise/unary``; see `binary`."""
    require_rank(name, "x", x, 0)
    require_dtype(name, "x", x, allowed)
    out = Spec.dense(x.spec.shape, result or x.spec.dtype)
    if x.spec.dtype in WIDE:
        # One kernel for one and for two operands: the second binding needs a buffer, too.
        return wide(name, x, x, out)
    params = {
        "size": out.size,
        "shape": pad_to_4d(out.shape, 1),
        "x_strides": pad_to_4d(x.spec.strides, 0),
    }
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params=params,
        choices={**in_registers(x.spec.dtype), **(choices or {}), "DENSE": x.spec.is_dense},
        in_place=("x",),
        work=x.spec.nbytes + out.nbytes,
    )


def binary(
    name: str,
    a: Node,
    b: Node,
    allowed: tuple[DType, ...] = FLOATS,
    choices: Mapping[str, str | bool] | None = None,
    result: DType | None = None,
    *,
    mixed: bool = True,
) -> Launch:
    """Return the launch of an op whose WGSL builds on ``lib/elementwise/binary``.

    Parameters
    ----------
    name : str
        Of the op, for messages.
    a, b : (...), of one of the types `allowed`, shapes that broadcast
        Both floats, or both of one type.
    choices : mapping
        Of the shader, in addition to those of every op of two operands.
    result : DType or None
        None is the type of `a`.
    mixed : bool
        The operands may have different float types.
    """
    require_rank(name, "a", a, 0)
    require_dtype(name, "a", a, allowed)
    require_rank(name, "b", b, 0)
    # Registers hold all floats as f32, so these may be mixed.
    require_dtype(name, "b", b, FLOATS if mixed and a.spec.dtype in FLOATS else (a.spec.dtype,))
    out = Spec.dense(broadcast(name, a.spec, b.spec), result or a.spec.dtype)
    if a.spec.dtype in WIDE:
        return wide(name, a, b, out, choices)
    params = {
        "size": out.size,
        "shape": pad_to_4d(out.shape, 1),
        "a_strides": pad_to_4d(broadcast_strides(a.spec, out.shape), 0),
        "b_strides": pad_to_4d(broadcast_strides(b.spec, out.shape), 0),
        # The kernel divides by it, also for a tensor without values.
        "b_size": max(b.spec.size, 1),
    }
    more = {**in_registers(a.spec.dtype), **(choices or {})}
    choices = {
        **more,
        "A_DENSE": a.spec.is_dense and a.spec.shape == out.shape,
        "B_DENSE": b.spec.is_dense and b.spec.shape == out.shape,
        "B_WRAPS": wraps(b.spec, out.shape),
    }
    return Launch(
        out,
        {"a": a, "b": b},
        threads=vec4s(out.size),
        params=params,
        choices=choices,
        in_place=("a", "b"),
        work=a.spec.nbytes + b.spec.nbytes + out.nbytes,
    )


def in_registers(dtype: DType) -> dict[str, str | bool]:
    """Return the shader choices of ``lib/elementwise/values`` for a type; none for floats."""
    if dtype in FLOATS:
        return {}
    return {"Value": "i32" if is_signed(dtype) else "u32", "FLOAT": False}


def is_signed(dtype: DType) -> bool:
    """Return whether a type is a signed integer of up to 32 bits."""
    return dtype in (I32, I16, I8)


def wraps(spec: Spec, shape: Shape) -> bool:
    """Return whether broadcasting repeats a dense operand whole, in multiples of four values."""
    own = spec.shape
    while own and own[0] == 1:
        own = own[1:]
    # Then a place modulo the operand's size is the place in it, without strides.
    is_end = own == shape[len(shape) - len(own) :] and spec.shape != shape
    return spec.is_dense and is_end and spec.size % 4 == 0 and spec.size > 0


def wide(
    name: str, a: Node, b: Node, out: Spec, relations: Mapping[str, str | bool] | None = None
) -> Launch:
    """Return the launch of an op on 64-bit integers, whose operation is in ``lib/wide``.

    Parameters
    ----------
    name : str
        Of the operation.
    a, b : (...), both i64 or both u64, shapes that broadcast
        The same node twice for an operation of one operand.
    out : Spec
        Of the result; bool for comparisons.
    relations : mapping
        Choices of a comparison.
    """
    compares = out.dtype == BOOL
    # Integers are never unordered, so `wide_compare` does not declare that choice.
    asked = {k: v for k, v in (relations or {}).items() if k in ("BELOW", "SAME", "ABOVE")}
    stored = {"operation": f"lib/wide/{name}", "y": "formats/bits_store4/wide"}
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
            **(asked if compares else stored),
        },
        shader="ops/elementwise/wide_compare" if compares else "ops/elementwise/wide",
        in_place=("a", "b"),
        work=a.spec.nbytes + b.spec.nbytes + out.nbytes,
    )
