"""Comparisons, logical ops, and `where`, which chooses by them."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BOOL, PLAIN, DType
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast, broadcast_strides
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require_dtype, require_rank, vec4s
from wgpu_backend.ops.elementwise.launches import NUMBERS, binary, in_registers, unary
from wgpu_backend.ops.elementwise.makers import op_maker
from wgpu_backend.ops.index.bits import moving
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# Constants of the shader ``compare``: an op is true for these relations of `a` to `b`.
_RELATIONS = {
    "equal": {"SAME"},
    # NaN is unordered: it differs from everything, itself included.
    "not_equal": {"BELOW", "ABOVE", "UNORDERED"},
    "less": {"BELOW"},
    "less_equal": {"BELOW", "SAME"},
    "greater": {"ABOVE"},
    "greater_equal": {"ABOVE", "SAME"},
}


@op_maker(constants=("a", "b"), shader="ops/elementwise/compare")
def _comparison(name: str, a: Node, b: Node) -> Launch:
    """Launch a comparison by its relations.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast; or both bool, or of one integer type
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape, bool.

    Raises
    ------
    ShapeError
        The shapes do not broadcast.
    DTypeError
        Other types, or an integer and a float.
    """
    key = in_registers(a.spec.dtype).get("Value", "f32")
    true = _RELATIONS[name]
    relations = {each: each in true for each in ("BELOW", "SAME", "ABOVE", "UNORDERED")}
    choices = {"key": f"lib/key/{key}", "Out": "u32", **relations}
    return binary(name, a, b, (*NUMBERS, BOOL), choices, BOOL)


@op_maker(constants=("a", "b"))
def _logical_op(name: str, a: Node, b: Node) -> Launch:
    """Launch an op on two truth values.

    Parameters
    ----------
    a, b : (...), bool, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape, bool.
    """
    return binary(name, a, b, (BOOL,), {"Out": "u32"})


@op_maker()
def _not_op(name: str, x: Node) -> Launch:
    """Launch the inversion of truth values.

    Parameters
    ----------
    x : (...), bool

    Returns
    -------
    Like `x`, dense.
    """
    return unary(name, x, (BOOL,), {"Out": "u32"})


equal = _comparison("equal", np.equal, "Return whether values are equal; NaN equals nothing.")
not_equal = _comparison("not_equal", np.not_equal, "Return whether values differ; NaN always does.")
less = _comparison("less", np.less, "Return whether `a` is below `b`, value by value.")
less_equal = _comparison(
    "less_equal", np.less_equal, "Return whether `a` is at most `b`, value by value."
)
greater = _comparison("greater", np.greater, "Return whether `a` is above `b`, value by value.")
greater_equal = _comparison(
    "greater_equal", np.greater_equal, "Return whether `a` is at least `b`, value by value."
)
logical_and = _logical_op("logical_and", np.logical_and, "Return whether both values are true.")
logical_or = _logical_op("logical_or", np.logical_or, "Return whether one value, or both, is true.")
logical_xor = _logical_op("logical_xor", np.logical_xor, "Return whether exactly one is true.")
logical_not = _not_op("logical_not", np.logical_not, "Return whether a value is false.")


@op(trusted=True, constants=("a", "b"))
def where(condition: Node, a: Node, b: Node) -> Launch:
    """Return the value of `a` where a condition is true, else that of `b`; shapes broadcast.

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
        Other types.
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
    # Two words are copied as bits; smaller types pass through registers.
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
    """Choose by the condition."""
    return np.where(condition, a, b)
