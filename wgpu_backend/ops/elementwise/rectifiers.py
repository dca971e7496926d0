"""Activations made of straight pieces or of exponentials below zero: relu's kin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.check import FLOATS, is_finite, require, require_number
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.elementwise.arithmetic import binary
from wgpu_backend.ops.elementwise.pointwise import clamped
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


def _with_number(name: str, x: Node, parameter: str, value: float) -> Launch:
    """Launch of an op whose WGSL builds on ``lib/elementwise/unary_with_number``."""
    require_number(name, parameter, value)
    require(is_finite(value), ShapeError, f"{name}: {parameter} is {value}, needs a finite number")
    launch = unary(name, x)
    return replace(launch, params={**launch.params, parameter: value})


def _bound(name: str, lambd: float) -> None:
    require_number(name, "lambd", lambd)
    require(lambd >= 0, ShapeError, f"{name}: lambd is {lambd}, needs 0 or more")


@op(trusted=True)
def relu6(x: Node) -> Launch:
    """Value, at least 0 and at most 6.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("relu6", x)


@relu6.reference
def relu6_reference(x: Array) -> Array:
    """Value from 0 to 6."""
    return np.clip(x, 0, 6)


@op(trusted=True)
def relu_squared(x: Node) -> Launch:
    """Square of the larger of the value and zero.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("relu_squared", x)


@relu_squared.reference
def relu_squared_reference(x: Array) -> Array:
    """Square of relu."""
    return np.square(np.maximum(x, 0))


@op(trusted=True)
def hardsigmoid(x: Node) -> Launch:
    """Sigmoid of straight pieces: ``x / 6 + 1 / 2``, at least 0 and at most 1.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("hardsigmoid", x)


@hardsigmoid.reference
def hardsigmoid_reference(x: Array) -> Array:
    """Sigmoid of straight pieces."""
    return np.clip((x + 3) / 6, 0, 1)


@op(trusted=True)
def hardswish(x: Node) -> Launch:
    """Value times its `hardsigmoid`.

    Source: Howard et al. 2019, §5.2.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("hardswish", x)


@hardswish.reference
def hardswish_reference(x: Array) -> Array:
    """Value times hardsigmoid, which is 0 for the smallest."""
    return np.where(x <= -3, 0, np.where(x >= 3, x, x * (x + 3) / 6))


@op(trusted=True)
def selu(x: Node) -> Launch:
    """Value above zero, exponential below, both scaled so that layers keep mean 0 and variance 1.

    Source: Klambauer et al. 2017, §2.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("selu", x)


@selu.reference
def selu_reference(x: Array) -> Array:
    """Scaled exponential unit."""
    return 1.0507009873554805 * elu_reference(x, 1.6732632423543772)


@op(trusted=True)
def elu(x: Node, alpha: float = 1.0) -> Launch:
    """Value above zero, ``alpha * (exp(x) - 1)`` below.

    Source: Clevert et al. 2016, §3.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    alpha : float
        Size of what large negative values tend to.

    Returns
    -------
    Like `x`, dense; NaN stays NaN.
    """
    return _with_number("elu", x, "alpha", alpha)


@elu.reference
def elu_reference(x: Array, alpha: float = 1.0) -> Array:
    """Exponential below zero."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@op(trusted=True)
def celu(x: Node, alpha: float = 1.0) -> Launch:
    """Value above zero, ``alpha * (exp(x / alpha) - 1)`` below.

    Source: Barron 2017.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    alpha : float
        Size of what large negative values tend to; not 0.

    Returns
    -------
    Like `x`, dense; NaN stays NaN.

    Raises
    ------
    ShapeError
        `alpha` is 0 or not finite.
    """
    require(alpha != 0, ShapeError, "celu: alpha is 0, needs another number")
    return _with_number("celu", x, "alpha", alpha)


@celu.reference
def celu_reference(x: Array, alpha: float = 1.0) -> Array:
    """Exponential of a part below zero."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


@op(trusted=True)
def leaky_relu(x: Node, negative_slope: float = 0.01) -> Launch:
    """Value above zero, a part of it below.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    negative_slope : float
        Which part.

    Returns
    -------
    Like `x`, dense; NaN stays NaN.
    """
    return _with_number("leaky_relu", x, "negative_slope", negative_slope)


@leaky_relu.reference
def leaky_relu_reference(x: Array, negative_slope: float = 0.01) -> Array:
    """A part below zero."""
    return np.where(x > 0, x, x * x.dtype.type(negative_slope))


@op(trusted=True)
def hard_shrink(x: Node, lambd: float = 0.5) -> Launch:
    """Value where its size is above a bound, else 0.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    lambd : float
        The bound, 0 or more.

    Returns
    -------
    Like `x`, dense; NaN stays NaN.

    Raises
    ------
    ShapeError
        `lambd` is negative or not finite.
    """
    _bound("hard_shrink", lambd)
    return _with_number("hard_shrink", x, "lambd", lambd)


@hard_shrink.reference
def hard_shrink_reference(x: Array, lambd: float = 0.5) -> Array:
    """Large values."""
    return np.where(np.abs(x) <= x.dtype.type(lambd), 0, x)


@op(trusted=True)
def softshrink(x: Node, lambd: float = 0.5) -> Launch:
    """Value moved towards zero by a bound, 0 where it would pass that.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    lambd : float
        The bound, 0 or more.

    Returns
    -------
    Like `x`, dense; NaN stays NaN.

    Raises
    ------
    ShapeError
        `lambd` is negative or not finite.
    """
    _bound("softshrink", lambd)
    return _with_number("softshrink", x, "lambd", lambd)


@softshrink.reference
def softshrink_reference(x: Array, lambd: float = 0.5) -> Array:
    """Values moved towards zero."""
    kind = x.dtype.type
    rest = np.maximum(np.abs(x) - kind(lambd), kind(0))
    return np.where(rest == 0, kind(0), np.copysign(rest, x))


@op(trusted=True)
def step(x: Node, threshold: float = 0.0) -> Launch:
    """Whether the value is above a threshold, as a number: 1 or 0.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    threshold : float
        The threshold.

    Returns
    -------
    Like `x`, dense; 0 of NaN.
    """
    return _with_number("step", x, "threshold", threshold)


@step.reference
def step_reference(x: Array, threshold: float = 0.0) -> Array:
    """Whether a value is above a threshold, as a number."""
    return (x > x.dtype.type(threshold)).astype(x.dtype)


@op(shader="ops/elementwise/clamp", dense=("x",), trusted=True)
def hardtanh(x: Node, low: float = -1.0, high: float = 1.0) -> Launch:
    """Value, at least `low` and at most `high`: `clamp` with bounds of its own.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    low, high : float

    Returns
    -------
    Like `x`; NaN stays NaN.

    Raises
    ------
    ShapeError
        `low` is above `high`, or one is NaN.
    """
    return clamped("hardtanh", x, low, high, FLOATS)


@hardtanh.reference
def hardtanh_reference(x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    """Value within bounds."""
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


@op(trusted=True)
def prelu(x: Node, weight: Node) -> Launch:
    """Value above zero, its product with a weight below.

    Source: He et al. 2015, §2.1.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    weight : (...), f32, f16 or bf16, of a shape that broadcasts with that of `x`

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `x`; NaN stays NaN.
    """
    return binary("prelu", x, weight)


@prelu.reference
def prelu_reference(x: Array, weight: Array) -> Array:
    """A weight times what is below zero."""
    return np.where(x > 0, x, x * weight)
