"""Activations made of straight pieces or of exponentials below zero: relu's kin."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.check import FLOATS, is_finite, require, require_number
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.elementwise.arithmetic import binary
from wgpu_backend.ops.elementwise.pointwise import clamped
from wgpu_backend.ops.op import op


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
