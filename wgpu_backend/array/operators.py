"""Functions of two values and more: arithmetic, comparisons, bits, and choosing.

Operands may be arrays, numbers, lists or NumPy's arrays, with an array among them; shapes
broadcast as NumPy's do, and types are promoted (`wgpu_backend.array.types`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.base import make_node, wrap
from wgpu_backend.array.conversion import convert, join_parts
from wgpu_backend.array.elementwise import (
    abs,
    describe,
    imag,
    isfinite,
    isnan,
    isneginf,
    isposinf,
    real,
)
from wgpu_backend.array.promotion import (
    apply_op,
    apply_to_nodes,
    as_node,
    call_complex,
    is_bool,
    is_complex,
    promote_operands,
    to_floats,
)
from wgpu_backend.array.types import FLOATING, INTEGERS, finfo, iinfo
from wgpu_backend.dtypes import BOOL, COMPLEX64, I32, DType
from wgpu_backend.errors import DTypeError
from wgpu_backend.ops.elementwise import (
    arithmetic,
    bitwise,
    comparison,
    float_bits,
    transcendental,
)
from wgpu_backend.ops.op import Op

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Binary = Callable[[Any, Any], "Array"]


def binary_function(op: Op[...], name: str = "", *, floats: bool = False) -> Binary:
    """Make a function of two values in their promoted type, converted to floats if `floats`."""
    name = name or op.name

    def function(a: Any, b: Any, /) -> Array:
        nodes = promote_operands(name, a, b)
        if is_complex(nodes[0]):
            return call_complex(name, *map(wrap, nodes))
        if floats:
            nodes = [to_floats(n) for n in nodes]
        elif is_bool(nodes[0]):
            # NumPy computes with 0 and 1, and a result is true where it is not 0.
            counted = apply_to_nodes(op, name, *(convert(n, I32) for n in nodes))
            return wrap(convert(counted, BOOL))
        return apply_op(op, name, *nodes)

    return describe(function, op, name, "")


def comparison_function(op: Op[...]) -> Binary:
    """Make a comparison of two values, whose result is an array of bool."""

    def function(a: Any, b: Any, /) -> Array:
        nodes = promote_operands(op.name, a, b)
        if is_complex(nodes[0]):
            return call_complex(op.name, *map(wrap, nodes))
        return apply_op(op, op.name, *nodes)

    return describe(function, op, "", "")


def logical_function(op: Op[...]) -> Binary:
    """Make a function of two truth values: everything but 0 is true."""

    def function(a: Any, b: Any, /) -> Array:
        return apply_op(op, op.name, *(convert(n, BOOL) for n in promote_operands(op.name, a, b)))

    return describe(function, op, "", "")


def bitwise_function(op: Op[...], *, bools: bool = True) -> Binary:
    """Make a function of the bits of two integers, or of two bools."""

    def function(a: Any, b: Any, /) -> Array:
        nodes = promote_operands(op.name, a, b)
        kind = nodes[0].spec.dtype
        if kind not in INTEGERS and not (bools and kind == BOOL):
            raise DTypeError(f"{op.name}: operands of {kind}, needs integers")
        return apply_op(op, op.name, *nodes)

    return describe(function, op, "", "")


add = binary_function(arithmetic.add)
subtract = binary_function(arithmetic.sub, "subtract")
multiply = binary_function(arithmetic.mul, "multiply")
divide = binary_function(arithmetic.div, "divide", floats=True)
power = binary_function(arithmetic.power)
maximum = binary_function(arithmetic.maximum)
minimum = binary_function(arithmetic.minimum)
floor_divide = binary_function(arithmetic.floor_divide)
remainder = binary_function(arithmetic.remainder)

equal = comparison_function(comparison.equal)
not_equal = comparison_function(comparison.not_equal)
less = comparison_function(comparison.less)
less_equal = comparison_function(comparison.less_equal)
greater = comparison_function(comparison.greater)
greater_equal = comparison_function(comparison.greater_equal)

logical_and = logical_function(comparison.logical_and)
logical_or = logical_function(comparison.logical_or)
logical_xor = logical_function(comparison.logical_xor)

atan2 = binary_function(transcendental.atan2, floats=True)
hypot = binary_function(transcendental.hypot, floats=True)
logaddexp = binary_function(transcendental.logaddexp, floats=True)
copysign = binary_function(float_bits.copysign, floats=True)
nextafter = binary_function(float_bits.nextafter, floats=True)

bitwise_and = bitwise_function(bitwise.bitwise_and)
bitwise_or = bitwise_function(bitwise.bitwise_or)
bitwise_xor = bitwise_function(bitwise.bitwise_xor)
left_shift = bitwise_function(bitwise.left_shift, bools=False)
right_shift = bitwise_function(bitwise.right_shift, bools=False)

# Other spellings of one function.
pow, arctan2 = power, atan2
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


def divmod(a: Any, b: Any, /) -> tuple[Array, Array]:
    """Return the quotient rounded down, and the remainder."""
    return floor_divide(a, b), remainder(a, b)


def where(condition: Any, a: Any, b: Any, /) -> Array:
    """Return values of `a` where a condition is true, else of `b`.

    Parameters
    ----------
    condition : array or array-like
        Everything but 0 is true.
    a, b : array, number or array-like
        Shapes of all three broadcast.
    """
    # Two numbers: the device is that of the condition.
    if not any(hasattr(v, "session") for v in (a, b)):
        a = wrap(make_node(a, None, getattr(condition, "session", None)))
    chosen = promote_operands("where", a, b)
    truth = convert(promote_operands("where", condition)[0], BOOL)
    return apply_op(comparison.where, "where", truth, *chosen)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Limit values to `min` and `max`; None is no bound.

    The array and bounds are promoted, so whole numbers with a bound of 0.5 become float32. NaN
    stays NaN, and a NaN as bound gives NaN.
    """
    kind = as_node("clip", x).spec.dtype
    found = wrap(x.node)
    if min is not None:
        found = maximum(found, _reachable(min, kind, 0))
    if max is not None:
        found = minimum(found, _reachable(max, kind, 1))
    return found


def _reachable(bound: Any, kind: DType, upper: int) -> Any:
    """Clamp an integer bound to the range of an integer type."""
    # A bound of 300 for u8 would not convert, but limits nothing.
    if kind not in INTEGERS or isinstance(bound, bool) or not isinstance(bound, int):
        return bound
    ends = iinfo(kind)
    if upper:
        return min(bound, ends.max)
    return max(bound, ends.min)


clamp = clip  # the name in Ollama


def isclose(
    a: Any,
    b: Any,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    *,
    equal_nan: bool = False,
) -> Array:
    """Return whether two values differ by at most ``atol + rtol * abs(b)``, value by value.

    Parameters
    ----------
    a, b : arrays or numbers that broadcast
    equal_nan : bool
        NaN is close to NaN. Infinities are close to those of their sign.
    """
    nodes = promote_operands("isclose", a, b)
    x, y = (wrap(n if is_complex(n) else to_floats(n)) for n in nodes)
    # ∞ - ∞ is NaN, so equal infinities are added afterwards.
    near = less_equal(abs(x - y), abs(y) * rtol + atol) & isfinite(x) & isfinite(y)
    found = near | equal(x, y)
    return found | (isnan(x) & isnan(y)) if equal_nan else found


def allclose(
    a: Any,
    b: Any,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    *,
    equal_nan: bool = False,
) -> Array:
    """Return whether `isclose` holds for all values: one bool."""
    from wgpu_backend.array.reductions import all

    return all(isclose(a, b, rtol, atol, equal_nan=equal_nan))


def array_equal(a: Any, b: Any, /, equal_nan: bool = False) -> Array:
    """Return whether two arrays have one shape and equal values: one bool."""
    from wgpu_backend.array.reductions import all

    x, y = (wrap(n) for n in promote_operands("array_equal", a, b))
    if x.shape != y.shape:
        # False as one byte: an array, as the function never waits for values.
        return wrap(x.session.constant(b"\0", BOOL, ()))
    same = equal(x, y)
    if equal_nan and x.dtype in (*FLOATING, COMPLEX64):
        same = same | (isnan(x) & isnan(y))
    return all(same)


def nan_to_num(
    x: Array, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Array:
    """Replace NaN and infinities by numbers; None is the largest of the type."""
    node = as_node("nan_to_num", x)
    if node.spec.dtype == COMPLEX64:
        parts = (nan_to_num(p(x), nan, posinf, neginf) for p in (real, imag))
        return wrap(join_parts(*(part.node for part in parts)))
    if node.spec.dtype not in FLOATING:
        return wrap(node)
    ends = finfo(node.spec.dtype)
    high = ends.max if posinf is None else posinf
    low = ends.min if neginf is None else neginf
    return where(isnan(x), nan, where(isposinf(x), high, where(isneginf(x), low, x)))
