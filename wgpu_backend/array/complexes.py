"""Functions of complex64, computed from the real and the imaginary parts.

Errors are some units in the last place of float32 of the larger part; branch cuts are those of the
array API standard. Functions that are not here raise DTypeError for complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array import elementwise as one
from wgpu_backend.array import manipulation, products, reductions, scans
from wgpu_backend.array import operators as two
from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import join_parts
from wgpu_backend.array.promotion import common_shape, write_out

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

# From here on the real part of tanh is 1 in float32: 1 - tanh(9) is 3e-8, about half an ulp.
FAR = 9.0
# Size from which log(1 + z) is log(z) in float32, and the square of a part still fits.
_LARGE = 1e9


def make_complex(real: Array, imag: Array) -> Array:
    """Return complex64 of real and imaginary parts that broadcast."""
    shape = common_shape("complex", [real.shape, imag.shape])
    return wrap(join_parts(*(write_out(x.node, shape) for x in (real, imag))))


def parts(z: Array) -> tuple[Array, Array]:
    """Return real and imaginary parts, views of float32."""
    return one.real(z), one.imag(z)


def on_parts(change: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function that applies another to the real and the imaginary parts."""

    def function(*operands: Any) -> Array:
        zs = [parts(z) for z in operands]
        return make_complex(change(*(z[0] for z in zs)), change(*(z[1] for z in zs)))

    return function


def _multiply(a: Array, b: Array) -> Array:
    (x, y), (u, v) = parts(a), parts(b)
    return make_complex(x * u - y * v, x * v + y * u)


def _divide(a: Array, b: Array) -> Array:
    """Divide with a scaled divisor, so that no square overflows (Smith 1962)."""
    (x, y), (u, v) = parts(a), parts(b)
    size = two.maximum(one.abs(u), one.abs(v))
    u, v = u / size, v / size
    # u and v are at most 1 here, so only the last factor may be large.
    below = (u * u + v * v) * size
    near = make_complex((x * u + y * v) / below, (y * u - x * v) / below)
    # A number divided by an infinity is 0, whose signs are those of the rule.
    u, v = _infinite_parts(b)
    gone = _is_infinite(b) & _isfinite(a)
    return _choose(gone, (0.0 * (x * u + y * v), 0.0 * (y * u - x * v)), near)


def _power(a: Array, b: Array) -> Array:
    exponential = _exp(_multiply(b, _log(a)))
    # log(0) is -∞: 0 to a power is set apart, 1 for the power 0, else 0.
    zero = ~a.astype("bool")
    alone = two.where(b.astype("bool"), 0, 1)
    return two.where(zero, make_complex(alone.astype("f32"), one.real(a) * 0), exponential)


def _times_i(z: Array) -> Array:
    x, y = parts(z)
    return make_complex(-y, x)


def _over_i(z: Array) -> Array:
    x, y = parts(z)
    return make_complex(y, -x)


def _abs(z: Array) -> Array:
    return two.hypot(*parts(z))


# Results for infinities, NaN and zeros are those of C's table (ISO C, annex G).


def _is_infinite(z: Array) -> Array:
    """Return whether a part is infinite."""
    x, y = parts(z)
    return one.isinf(x) | one.isinf(y)


def _infinite_parts(z: Array) -> tuple[Array, Array]:
    """Return the signs of the parts that are infinite, 0 for others with their sign."""
    x, y = parts(z)
    return (
        two.copysign(one.isinf(x).astype("f32"), x),
        two.copysign(one.isinf(y).astype("f32"), y),
    )


def _choose(test: Array, own: tuple[Array | float, Array], other: Array) -> Array:
    """Take one pair of parts where a test holds, another elsewhere."""
    x, y = parts(other)
    return make_complex(two.where(test, own[0], x), two.where(test, own[1], y))


def _scale_cosine(x: Array, size: Array, turn: Array) -> Array:
    """Multiply by a cosine; an infinite factor stays infinite where the cosine is NaN."""
    return two.where(one.isinf(x) & one.isnan(turn), size, size * turn)


def _exp(z: Array) -> Array:
    x, y = parts(z)
    size = one.exp(x)
    # The exponential of -∞ is 0, whatever its angle; a real number's is real.
    gone = x == -math.inf
    turn = two.where((y == 0) | gone, 0.0, one.sin(y))
    real = _scale_cosine(x, size, two.where(gone, 1.0, one.cos(y)))
    return make_complex(real, two.where(y == 0, y, size * turn))


def _expm1(z: Array) -> Array:
    x, y = parts(z)
    # exp(x) cos(y) - 1 = expm1(x) cos(y) - 2 sin²(y / 2): nothing cancels near 0.
    half, (real, imag) = one.sin(y * 0.5), parts(_exp(z))
    near = one.expm1(x) * one.cos(y) - 2 * half * half + 0.0
    return make_complex(two.where(one.isinf(x), real - 1, near), imag)


def _real_log(z: Array) -> Array:
    return one.log(_abs(z))


def _log(z: Array) -> Array:
    return make_complex(_real_log(z), two.atan2(*parts(z)[::-1]))


def _log1p(z: Array) -> Array:
    x, y = parts(z)
    # log |1 + z| = log1p(|1 + z|² - 1) / 2, which is exact near 0.
    size = one.log1p(x * (2 + x) + y * y) * 0.5
    # Squares of large parts overflow, and 1 is nothing beside them.
    size = two.where((one.abs(x) > _LARGE) | (one.abs(y) > _LARGE), _real_log(z), size)
    return make_complex(two.where(_is_infinite(z), math.inf, size), two.atan2(y, x + 1))


def _sqrt(z: Array) -> Array:
    x, y = parts(z)
    # The larger part by a sum of positive numbers, the other by a quotient: no cancellation.
    large = one.sqrt(one.abs(x) * 0.5 + _abs(z) * 0.5)
    small = two.where(large == 0, 0.0, one.abs(y) * 0.5 / large)
    ahead = x >= 0
    near = make_complex(
        two.where(ahead, large, small), two.copysign(two.where(ahead, small, large), y)
    )
    return _choose(one.isinf(y), (math.inf, y), near)


def _sign(z: Array) -> Array:
    # An infinity has the direction of its infinite parts.
    endless, (u, v) = _is_infinite(z), _infinite_parts(z)
    z = _choose(endless, (u, v), z)
    size = _abs(z)
    x, y = (two.where(size == 0, 0.0, p / size) for p in parts(z))
    return make_complex(x, y)


def _sinh(z: Array) -> Array:
    x, y = parts(z)
    real = two.where(x == 0, x, _scale_cosine(x, one.sinh(x), one.cos(y)))
    return make_complex(real, two.where(y == 0, y, one.cosh(x) * one.sin(y)))


def _cosh(z: Array) -> Array:
    x, y = parts(z)
    flat = (x == 0) | (y == 0)
    imag = one.sinh(x) * one.sin(y)
    return make_complex(
        _scale_cosine(x, one.cosh(x), one.cos(y)), two.where(flat & one.isnan(imag), 0.0, imag)
    )


def _tanh(z: Array) -> Array:
    """Compute tanh as in Kahan 1987, "Branch cuts for complex elementary functions"."""
    x, y = parts(z)
    tangent = one.tan(y)
    # Limits sinh to a range whose square float32 holds.
    near = two.minimum(two.maximum(x, -FAR), FAR)
    steep, sine = 1 + tangent * tangent, one.sinh(near)
    below = 1 + steep * sine * sine
    far = one.abs(x) > FAR
    real = two.where(far, one.sign(x), steep * one.sqrt(1 + sine * sine) * sine / below)
    # The imaginary part far from 0, where the quotient would be ∞ / ∞.
    rest = 4 * one.sin(y) * one.cos(y) * one.exp(-2 * one.abs(x))
    ends = one.isinf(x)
    imag = two.where(ends, two.copysign(0.0, y), two.where(far, rest, tangent / below))
    turning = ~(ends | one.isfinite(y))
    real = two.where(turning, two.where(x == 0, x, math.nan), real)
    return make_complex(real, two.where(y == 0, y, two.where(turning, math.nan, imag)))


def _roots(z: Array) -> tuple[Array, Array]:
    x, y = parts(z)
    return _sqrt(make_complex(1 - x, -y)), _sqrt(make_complex(1 + x, y))


def _asin(z: Array) -> Array:
    low, high = _roots(z)
    (a, b), (c, d) = parts(low), parts(high)
    x, y = parts(z)
    near = make_complex(two.where(x == 0, x, two.atan2(x, a * c - b * d)), one.asinh(a * d - b * c))
    ends = two.atan2(x, one.abs(y)), two.copysign(math.inf, y)
    return _choose(_is_infinite(z), ends, near)


def _acos(z: Array) -> Array:
    low, high = _roots(z)
    (a, b), (c, d) = parts(low), parts(high)
    x, y = parts(z)
    real = two.where((x == 0) & one.isnan(y), math.pi / 2, 2 * two.atan2(a, c))
    ends = two.atan2(one.abs(y), x), two.copysign(math.inf, -y)
    return _choose(_is_infinite(z), ends, make_complex(real, one.asinh(c * b - d * a)))


def _acosh(z: Array) -> Array:
    x, y = parts(z)
    (a, b), (c, d) = parts(_sqrt(make_complex(x - 1, y))), parts(_sqrt(make_complex(x + 1, y)))
    imag = two.where((x == 0) & one.isnan(y), math.pi / 2, 2 * two.atan2(b, c))
    near = make_complex(one.asinh(a * c + b * d), imag)
    return _choose(_is_infinite(z), (math.inf, two.atan2(y, x)), near)


def _atanh(z: Array) -> Array:
    x, y = parts(z)
    real = two.where(x == 0, x, one.log1p(4 * x / ((1 - x) * (1 - x) + y * y)) * 0.25)
    near = make_complex(real, two.atan2(2 * y, (1 - x) * (1 + x) - y * y) * 0.5)
    angle = two.where(one.isnan(y), y, two.copysign(math.pi / 2, y))
    return _choose(_is_infinite(z), (two.copysign(0.0, x), angle), near)


def _scale(function: Callable[[Array], Array], factor: float) -> Callable[[Array], Array]:
    def product(z: Array) -> Array:
        x, y = parts(function(z))
        return make_complex(x * factor, y * factor)

    return product


def _rotate(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the function ``f(i z) / i``: for example sin, if `f` is sinh."""

    def function_of_i(z: Array) -> Array:
        return _over_i(function(_times_i(z)))

    return function_of_i


def _matmul(a: Array, b: Array) -> Array:
    (x, y), (u, v) = parts(a), parts(b)
    real = products.matmul(x, u) - products.matmul(y, v)
    return make_complex(real, products.matmul(x, v) + products.matmul(y, u))


def _prod(z: Array, axis: Any, keepdims: bool) -> Array:
    """Multiply over axes: multiply halves until one value is left."""
    axes = reductions.normalise_axes("prod", z.node, axis)
    rest = [a for a in range(z.ndim) if a not in axes]
    count = math.prod(z.shape[a] for a in axes)
    rows = z.transpose(*axes, *rest) if z.ndim else z
    rows = rows.reshape(count, *(z.shape[a] for a in rest))
    if not count:
        rows = make_complex(rows.real.sum(0, keepdims=True) + 1, rows.imag.sum(0, keepdims=True))
    # A product mixes both parts, so they cannot be folded apart; halves take log2(n) steps.
    while len(rows) > 1:
        half = len(rows) // 2
        odd = [rows[2 * half :]] if len(rows) % 2 else []
        rows = manipulation.concat([_multiply(rows[:half], rows[half : 2 * half]), *odd])
    return rows.reshape(reductions.reduced_shape(z.shape, axes, keepdims))


def _reduce_parts(fold: Callable[..., Array]) -> Callable[..., Array]:
    def function(z: Array, axis: Any, keepdims: bool) -> Array:
        x, y = parts(z)
        return make_complex(fold(x, axis, keepdims), fold(y, axis, keepdims))

    return function


def _cumsum(z: Array, axis: int, reverse: bool, inclusive: bool) -> Array:
    x, y = (scans.cumsum(p, axis, reverse=reverse, inclusive=inclusive) for p in parts(z))
    return make_complex(x, y)


def _cumprod(z: Array, axis: int, reverse: bool, inclusive: bool) -> Array:
    """Compute a running product by doubling steps (Hillis & Steele 1986)."""
    from wgpu_backend.array.manipulation import flip

    rows = manipulation.moveaxis(z, axis, 0)
    rows = flip(rows, axis=0) if reverse else rows
    if not inclusive and len(rows):
        ones = make_complex(rows[:1].real * 0 + 1, rows[:1].imag * 0)
        rows = manipulation.concat([ones, rows[:-1]])
    step = 1
    while step < len(rows):
        rows = manipulation.concat([rows[:step], _multiply(rows[step:], rows[:-step])])
        step *= 2
    return manipulation.moveaxis(flip(rows, axis=0) if reverse else rows, 0, axis)


def _either(test: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def function(z: Array) -> Array:
        x, y = parts(z)
        return test(x) | test(y)

    return function


def _square(z: Array) -> Array:
    return _multiply(z, z)


def _reciprocal(z: Array) -> Array:
    nothing = one.isnan(one.real(z)).astype("f32") * 0
    return _divide(make_complex(nothing + 1, nothing), z)


def _exp2(z: Array) -> Array:
    x, y = parts(z)
    return _exp(make_complex(x * math.log(2), y * math.log(2)))


def _rsqrt(z: Array) -> Array:
    return _reciprocal(_sqrt(z))


def _cos(z: Array) -> Array:
    return _cosh(_times_i(z))


def _isfinite(z: Array) -> Array:
    return one.isfinite(one.real(z)) & one.isfinite(one.imag(z))


def _equal(a: Array, b: Array) -> Array:
    return (one.real(a) == one.real(b)) & (one.imag(a) == one.imag(b))


def _not_equal(a: Array, b: Array) -> Array:
    return ~_equal(a, b)


# By the name of the function of real numbers.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": on_parts(two.add), "subtract": on_parts(two.subtract), "multiply": _multiply,
    "divide": _divide, "power": _power, "negative": on_parts(one.negative), "square": _square,
    "sign": _sign, "reciprocal": _reciprocal, "abs": _abs, "exp": _exp, "exp2": _exp2,
    "expm1": _expm1, "log": _log, "log1p": _log1p, "log2": _scale(_log, 1 / math.log(2)),
    "log10": _scale(_log, 1 / math.log(10)), "sqrt": _sqrt, "rsqrt": _rsqrt, "sinh": _sinh,
    "cosh": _cosh, "tanh": _tanh, "sin": _rotate(_sinh), "cos": _cos, "tan": _rotate(_tanh),
    "asin": _asin, "acos": _acos, "acosh": _acosh, "atanh": _atanh, "asinh": _rotate(_asin),
    "atan": _rotate(_atanh), "isnan": _either(one.isnan), "isinf": _either(one.isinf),
    "isfinite": _isfinite, "equal": _equal, "not_equal": _not_equal,
    "sum": _reduce_parts(reductions.sum), "mean": _reduce_parts(reductions.mean), "prod": _prod,
    "cumsum": _cumsum, "cumprod": _cumprod, "matmul": _matmul,
}  # fmt: skip
