"""Functions of two values and more: arithmetic, comparisons, bits, and choosing.

Operands may be arrays, numbers, lists or NumPy's arrays, with an array among them; shapes
broadcast as NumPy's do, and types are promoted (`wgpu_backend.array.types`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.conversion import converted, paired
from wgpu_backend.array.core import node_of, wrap
from wgpu_backend.array.elementwise import (
    abs,
    imag,
    isfinite,
    isnan,
    isneginf,
    isposinf,
    named,
    real,
)
from wgpu_backend.array.lifting import (
    Kernel,
    as_node,
    floating,
    is_bool,
    is_complex,
    lifted,
    of_complex,
    over_axes,
    promoted,
)
from wgpu_backend.array.types import FLOATING, INTEGERS, finfo, iinfo
from wgpu_backend.dtypes import BOOL, COMPLEX64, I32, DType
from wgpu_backend.errors import DTypeError
from wgpu_backend.ops.elementwise import (
    arithmetic,
    bitwise,
    comparison,
    division,
    float_bits,
    transcendental,
)

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Binary = Callable[[Any, Any], "Array"]


def of_two(op: Kernel, name: str, summary: str, *, floats: bool = False) -> Binary:
    """Function of two values, in the type they are promoted to."""

    def function(a: Any, b: Any, /) -> Array:
        nodes = promoted(name, a, b)
        if is_complex(nodes[0]):
            return of_complex(name, *map(wrap, nodes))
        if floats:
            nodes = [floating(n) for n in nodes]
        elif is_bool(nodes[0]):  # as NumPy has it: counted, and true where it is not 0
            counted = over_axes(op, name, *(converted(n, I32) for n in nodes))
            return wrap(converted(counted, BOOL))
        return lifted(op, name, *nodes)

    return named(function, name, summary)


def of_compared(op: Kernel, name: str, summary: str) -> Binary:
    """Comparison of two values: an array of bool."""

    def function(a: Any, b: Any, /) -> Array:
        nodes = promoted(name, a, b)
        if is_complex(nodes[0]):
            return of_complex(name, *map(wrap, nodes))
        return lifted(op, name, *nodes)

    return named(function, name, summary)


def of_truth(op: Kernel, name: str, summary: str) -> Binary:
    """Function of what is true or false: everything but 0 is true."""

    def function(a: Any, b: Any, /) -> Array:
        return lifted(op, name, *(converted(n, BOOL) for n in promoted(name, a, b)))

    return named(function, name, summary)


add = of_two(arithmetic.add, "add", "Sum of two arrays, value by value.")
subtract = of_two(arithmetic.sub, "subtract", "Difference of two arrays, value by value.")
multiply = of_two(arithmetic.mul, "multiply", "Product of two arrays, value by value.")
divide = of_two(arithmetic.div, "divide", "Quotient, value by value, in floats.", floats=True)
power = of_two(arithmetic.power, "power", "First value to the power of the second.")
maximum = of_two(arithmetic.maximum, "maximum", "Larger of two values; NaN where one is.")
minimum = of_two(arithmetic.minimum, "minimum", "Smaller of two values; NaN where one is.")

equal = of_compared(comparison.equal, "equal", "Whether two values are equal.")
not_equal = of_compared(comparison.not_equal, "not_equal", "Whether two values differ.")
less = of_compared(comparison.less, "less", "Whether the first value is below the second.")
less_equal = of_compared(comparison.less_equal, "less_equal", "Whether the first is not above.")
greater = of_compared(comparison.greater, "greater", "Whether the first is above the second.")
greater_equal = of_compared(comparison.greater_equal, "greater_equal", "Whether it is not below.")

logical_and = of_truth(comparison.logical_and, "logical_and", "Whether both are true.")
logical_or = of_truth(comparison.logical_or, "logical_or", "Whether one of both is true.")
logical_xor = of_truth(comparison.logical_xor, "logical_xor", "Whether one alone is true.")

floor_divide = of_two(division.floor_divide, "floor_divide", "Quotient, rounded down.")
remainder = of_two(division.remainder, "remainder", "What `floor_divide` leaves: the sign of `b`.")


def of_two_floats(op: Kernel, name: str, summary: str) -> Binary:
    """Function of two floats; integers are converted to float32."""
    return of_two(op, name, summary, floats=True)


atan2 = of_two_floats(transcendental.atan2, "atan2", "Angle of a point (b, a) from the first axis.")
hypot = of_two_floats(transcendental.hypot, "hypot", "Length of two sides at a right angle.")
logaddexp = of_two_floats(
    transcendental.logaddexp, "logaddexp", "Logarithm of the sum of two exponentials."
)
copysign = of_two_floats(float_bits.copysign, "copysign", "First value with the second's sign.")
nextafter = of_two_floats(float_bits.nextafter, "nextafter", "Next float towards the second.")


def of_bits(op: Kernel, name: str, summary: str, *, bools: bool = True) -> Binary:
    """Function of the bits of two integers, or of two bools."""

    def function(a: Any, b: Any, /) -> Array:
        nodes = promoted(name, a, b)
        kind = nodes[0].spec.dtype
        if kind not in INTEGERS and not (bools and kind == BOOL):
            raise DTypeError(f"{name}: operands of {kind}, needs integers")
        return lifted(op, name, *nodes)

    return named(function, name, summary)


bitwise_and = of_bits(bitwise.bitwise_and, "bitwise_and", "Bits that both integers have.")
bitwise_or = of_bits(bitwise.bitwise_or, "bitwise_or", "Bits that one integer has, or both.")
bitwise_xor = of_bits(bitwise.bitwise_xor, "bitwise_xor", "Bits that one integer has alone.")
left_shift = of_bits(
    bitwise.left_shift, "left_shift", "Bits of `a` moved up by `b` places.", bools=False
)
right_shift = of_bits(
    bitwise.right_shift, "right_shift", "Bits of `a` moved down by `b` places.", bools=False
)

pow, arctan2 = power, atan2  # other spellings of one function
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


def divmod(a: Any, b: Any, /) -> tuple[Array, Array]:
    """Quotient rounded down, and what it leaves."""
    return floor_divide(a, b), remainder(a, b)


def where(condition: Any, a: Any, b: Any, /) -> Array:
    """Values of `a` where a condition is true, else of `b`.

    Parameters
    ----------
    condition : array or array-like
        Everything but 0 is true.
    a, b : array, number or array-like
        Shapes of all three broadcast.
    """
    if not any(hasattr(v, "session") for v in (a, b)):
        a = wrap(node_of(a, None, getattr(condition, "session", None)))
    chosen = promoted("where", a, b)
    truth = converted(promoted("where", condition)[0], BOOL)
    return lifted(comparison.where, "where", truth, *chosen)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Values no lower than `min` and no higher than `max`; None is no bound.

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
    """A whole bound that no value of a type of integers passes, as the end of the type."""
    if kind not in INTEGERS or isinstance(bound, bool) or not isinstance(bound, int):
        return bound
    ends = iinfo(kind)
    if upper:
        return min(bound, ends.max)
    return max(bound, ends.min)


clamp = clip  # as Ollama spells it


def isclose(
    a: Any,
    b: Any,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    *,
    equal_nan: bool = False,
) -> Array:
    """Whether two values differ by at most ``atol + rtol * abs(b)``, value by value.

    Parameters
    ----------
    a, b : arrays or numbers that broadcast
    rtol, atol : float
    equal_nan : bool
        NaN is close to NaN. Infinities are close to those of their sign.
    """
    nodes = promoted("isclose", a, b)
    x, y = (wrap(n if is_complex(n) else floating(n)) for n in nodes)
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
    """Whether `isclose` holds of all values: one bool."""
    from wgpu_backend.array.reductions import all

    return all(isclose(a, b, rtol, atol, equal_nan=equal_nan))


def array_equal(a: Any, b: Any, /, equal_nan: bool = False) -> Array:
    """Whether two arrays have one shape and equal values: one bool."""
    from wgpu_backend.array.reductions import all

    x, y = (wrap(n) for n in promoted("array_equal", a, b))
    if x.shape != y.shape:
        return wrap(x.session.constant(b"\0", BOOL, ()))
    same = equal(x, y)
    if equal_nan and x.dtype in (*FLOATING, COMPLEX64):
        same = same | (isnan(x) & isnan(y))
    return all(same)


def nan_to_num(
    x: Array, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Array:
    """Numbers in place of NaN and infinities; the largest of the type where they are None."""
    node = as_node("nan_to_num", x)
    if node.spec.dtype == COMPLEX64:
        parts = (nan_to_num(p(x), nan, posinf, neginf) for p in (real, imag))
        return wrap(paired(*(part.node for part in parts)))
    if node.spec.dtype not in FLOATING:
        return wrap(node)
    ends = finfo(node.spec.dtype)
    high = ends.max if posinf is None else posinf
    low = ends.min if neginf is None else neginf
    return where(isnan(x), nan, where(isposinf(x), high, where(isneginf(x), low, x)))
