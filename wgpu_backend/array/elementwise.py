"""Functions of each value: arithmetic, comparisons, functions of one value, and choosing.

Operands may be arrays, numbers, lists or NumPy's arrays, with an array among them; shapes
broadcast as NumPy's do, and types are promoted (`wgpu_backend.array.types`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.core import wrap
from wgpu_backend.array.lifting import (
    Kernel,
    as_node,
    converted,
    floating,
    is_bool,
    lifted,
    over_axes,
    promoted,
)
from wgpu_backend.array.types import FLOATING
from wgpu_backend.dtypes import BOOL, I32
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.elementwise import activation, arithmetic, comparison, pointwise

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Unary = Callable[..., "Array"]
Binary = Callable[[Any, Any], "Array"]


def of_floats(op: Kernel, name: str, summary: str) -> Unary:
    """Function of one value that is a float: integers are converted to float32."""

    def function(x: Array, /, **options: Any) -> Array:
        return lifted(op, name, floating(as_node(name, x)), **options)

    return _named(function, name, summary)


def of_numbers(op: Kernel, name: str, summary: str) -> Unary:
    """Function of one value that keeps its type."""

    def function(x: Array, /) -> Array:
        return lifted(op, name, as_node(name, x))

    return _named(function, name, summary)


def of_two(op: Kernel, name: str, summary: str, *, floats: bool = False) -> Binary:
    """Function of two values, in the type they are promoted to."""

    def function(a: Any, b: Any, /) -> Array:
        nodes = promoted(name, a, b)
        if floats:
            nodes = [floating(n) for n in nodes]
        elif is_bool(nodes[0]):  # as NumPy has it: counted, and true where it is not 0
            counted = over_axes(op, name, *(converted(n, I32) for n in nodes))
            return wrap(converted(counted, BOOL))
        return lifted(op, name, *nodes)

    return _named(function, name, summary)


def of_compared(op: Kernel, name: str, summary: str) -> Binary:
    """Comparison of two values: an array of bool."""

    def function(a: Any, b: Any, /) -> Array:
        return lifted(op, name, *promoted(name, a, b))

    return _named(function, name, summary)


def of_truth(op: Kernel, name: str, summary: str) -> Callable[..., Array]:
    """Function of what is true or false: everything but 0 is true."""

    def function(*operands: Any) -> Array:
        nodes = [converted(n, BOOL) for n in promoted(name, *operands)]
        return lifted(op, name, *nodes)

    return _named(function, name, summary)


def _named(function: Any, name: str, summary: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary
    return function


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
logical_not = of_truth(comparison.logical_not, "logical_not", "Whether it is false.")

negative = of_numbers(pointwise.neg, "negative", "Value with the other sign.")
square = of_numbers(pointwise.sqr, "square", "Value times itself.")

exp = of_floats(pointwise.exp, "exp", "Exponential.")
log = of_floats(pointwise.log, "log", "Natural logarithm; NaN below 0.")
sqrt = of_floats(pointwise.sqrt, "sqrt", "Square root; NaN below 0.")
sin = of_floats(pointwise.sin, "sin", "Sine of radians.")
cos = of_floats(pointwise.cos, "cos", "Cosine of radians.")
tanh = of_floats(activation.tanh, "tanh", "Hyperbolic tangent.")
sigmoid = of_floats(activation.sigmoid, "sigmoid", "Logistic function: 1 / (1 + exp(-x)).")


def abs(x: Array, /) -> Array:
    """Value without its sign; of unsigned integers and bools, the array itself."""
    node = as_node("abs", x)
    signed = node.spec.dtype.numpy is not None and node.spec.dtype.numpy.kind in "if"
    if not signed and node.spec.dtype not in FLOATING:
        return x
    return lifted(pointwise.abs, "abs", node)


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
        beside = getattr(condition, "device", None)
        a = wrap(_placed(a, beside))
    chosen = promoted("where", a, b)
    truth = converted(promoted("where", condition)[0], BOOL)
    return lifted(comparison.where, "where", truth, *chosen)


def _placed(value: Any, device: object) -> Node:
    from wgpu_backend.array.core import node_of

    return node_of(value, None, device)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Values no lower than `min` and no higher than `max`; None is no bound.

    Bounds take the type of the array; NaN stays NaN.
    """
    node = as_node("clip", x)
    for bound, choose in ((min, arithmetic.maximum), (max, arithmetic.minimum)):
        if bound is not None:
            limit = converted(promoted("clip", wrap(node), bound)[1], node.spec.dtype)
            node = over_axes(choose, "clip", node, limit)
    return wrap(node)
