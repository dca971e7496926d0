"""Comparisons and what their results are for: logical ops, and `where`, which chooses by them."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BOOL, DType
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast, broadcast_strides
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require_dtype, require_rank, vec4s
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.elementwise.arithmetic import NUMBERS, binary, in_registers
from wgpu_backend.ops.index.bits import PLAIN, moving
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

COMPARED = (*NUMBERS, BOOL)


def _compared(name: str, a: Node, b: Node, *said: str) -> Launch:
    dtype = a.spec.dtype
    key = in_registers(dtype).get("Value", "f32")
    relations = {relation: relation in said for relation in ("BELOW", "SAME", "ABOVE", "UNORDERED")}
    return binary(name, a, b, COMPARED, {"key": f"lib/key/{key}", "Out": "u32", **relations}, BOOL)


@op(shader="ops/elementwise/compare", trusted=True, constants=("a", "b"))
def equal(a: Node, b: Node) -> Launch:
    """Whether two values are equal, value by value; NaN equals nothing.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast; or both bool, or of one
        integer type.
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape, bool.

    Raises
    ------
    ShapeError
        The shapes do not broadcast.
    DTypeError
        The types are others, or an integer meets a float.
    """
    return _compared("equal", a, b, "SAME")


@equal.reference
def equal_reference(a: Array, b: Array) -> Array:
    """Same."""
    return a == b


@op(shader="ops/elementwise/compare", trusted=True, constants=("a", "b"))
def not_equal(a: Node, b: Node) -> Launch:
    """Whether two values differ, value by value, as NaN does from all; see `equal`."""
    return _compared("not_equal", a, b, "BELOW", "ABOVE", "UNORDERED")


@not_equal.reference
def not_equal_reference(a: Array, b: Array) -> Array:
    """Another."""
    return a != b


@op(shader="ops/elementwise/compare", trusted=True, constants=("a", "b"))
def less(a: Node, b: Node) -> Launch:
    """Whether `a` is below `b`, value by value; see `equal`."""
    return _compared("less", a, b, "BELOW")


@less.reference
def less_reference(a: Array, b: Array) -> Array:
    """Below."""
    return a < b


@op(shader="ops/elementwise/compare", trusted=True, constants=("a", "b"))
def less_equal(a: Node, b: Node) -> Launch:
    """Whether `a` is at most `b`, value by value; see `equal`."""
    return _compared("less_equal", a, b, "BELOW", "SAME")


@less_equal.reference
def less_equal_reference(a: Array, b: Array) -> Array:
    """At most."""
    return a <= b


@op(shader="ops/elementwise/compare", trusted=True, constants=("a", "b"))
def greater(a: Node, b: Node) -> Launch:
    """Whether `a` is above `b`, value by value; see `equal`."""
    return _compared("greater", a, b, "ABOVE")


@greater.reference
def greater_reference(a: Array, b: Array) -> Array:
    """Above."""
    return a > b


@op(shader="ops/elementwise/compare", trusted=True, constants=("a", "b"))
def greater_equal(a: Node, b: Node) -> Launch:
    """Whether `a` is at least `b`, value by value; see `equal`."""
    return _compared("greater_equal", a, b, "ABOVE", "SAME")


@greater_equal.reference
def greater_equal_reference(a: Array, b: Array) -> Array:
    """At least."""
    return a >= b


@op(trusted=True, constants=("a", "b"))
def logical_and(a: Node, b: Node) -> Launch:
    """Whether both of two truth values are true.

    Parameters
    ----------
    a, b : (...), bool, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape, bool.
    """
    return binary("logical_and", a, b, (BOOL,), {"Out": "u32"})


@logical_and.reference
def logical_and_reference(a: Array, b: Array) -> Array:
    """Both."""
    return a & b


@op(trusted=True, constants=("a", "b"))
def logical_or(a: Node, b: Node) -> Launch:
    """Whether one of two truth values is true, or both; see `logical_and`."""
    return binary("logical_or", a, b, (BOOL,), {"Out": "u32"})


@logical_or.reference
def logical_or_reference(a: Array, b: Array) -> Array:
    """One, or both."""
    return a | b


@op(trusted=True, constants=("a", "b"))
def logical_xor(a: Node, b: Node) -> Launch:
    """Whether one of two truth values is true, and not both; see `logical_and`."""
    return binary("logical_xor", a, b, (BOOL,), {"Out": "u32"})


@logical_xor.reference
def logical_xor_reference(a: Array, b: Array) -> Array:
    """One of the two."""
    return a ^ b


@op(trusted=True)
def logical_not(x: Node) -> Launch:
    """Whether a truth value is false.

    Parameters
    ----------
    x : (...), bool

    Returns
    -------
    Like `x`, dense.
    """
    return unary("logical_not", x, (BOOL,), {"Out": "u32"})


@logical_not.reference
def logical_not_reference(x: Array) -> Array:
    """Return the other one."""
    return ~x


@op(trusted=True, constants=("a", "b"))
def where(condition: Node, a: Node, b: Node) -> Launch:
    """Value of `a` where a condition is true, else that of `b`; shapes broadcast.

    Parameters
    ----------
    condition : (...), bool
    a, b : (...), f32, f16 or bf16; or both of one plain type
        Numbers and arrays take the type of the other; f32 or i32 if both are.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`.

    Raises
    ------
    ShapeError
        The shapes do not broadcast.
    DTypeError
        The types are others.
    """
    operands = {"condition": condition, "a": a, "b": b}
    allowed = (a.spec.dtype,) if a.spec.dtype not in FLOATS else FLOATS
    types: dict[str, tuple[DType, ...]] = {"condition": (BOOL,), "a": PLAIN, "b": allowed}
    for name, node in operands.items():
        require_rank("where", name, node, 0)
        require_dtype("where", name, node, types[name])
    both = Spec.dense(broadcast("where", a.spec, b.spec), a.spec.dtype)
    out = Spec.dense(broadcast("where", condition.spec, both), a.spec.dtype)
    strides = {f"{n}_strides": broadcast_strides(x.spec, out.shape) for n, x in operands.items()}
    whole = out.dtype.block_nbytes == 8
    return Launch(
        out,
        operands,
        threads=vec4s(out.size),
        choices=moving(out.dtype, "a", "b") if whole else {},
        shader="ops/elementwise/where_bits" if whole else "",
        params={
            "size": out.size,
            "shape": pad_to_4d(out.shape, 1),
            **{name: pad_to_4d(steps, 0) for name, steps in strides.items()},
        },
        work=sum(x.spec.nbytes for x in operands.values()) + out.nbytes,
    )


@where.reference
def where_reference(condition: Array, a: Array, b: Array) -> Array:
    """Choose."""
    return np.where(condition, a, b)
