"""Activations, and gated activations ``act(gate) * up``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import (
    FLOATS,
    is_finite,
    require,
    require_dtype,
    require_number,
    vec4s,
)
from wgpu_backend.ops.elementwise.launches import binary, unary
from wgpu_backend.ops.elementwise.makers import op_maker, unary_op
from wgpu_backend.ops.op import Replace, op
from wgpu_backend.ops.reference import Array

# NumPy has no error function.
_erfc: Callable[[Array], Array] = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid_reference(x: Array) -> Array:
    """Return the logistic function; exp only of negative numbers, so nothing overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _silu(x: Array) -> Array:
    return x * sigmoid_reference(x)


def _gelu(x: Array) -> Array:
    # (1 + tanh(u)) / 2 is written as a sigmoid, which does not cancel.
    return x * sigmoid_reference(2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))


def _gelu_erf(x: Array) -> Array:
    # By the complement of erf, as 1 + erf cancels for negative numbers.
    return 0.5 * x * _erfc(-x / math.sqrt(2))


def _quick_gelu(x: Array) -> Array:
    # Hendrycks and Gimpel 2016, §2.
    return x * sigmoid_reference(1.702 * x)


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, x.dtype.type(0))


def _hardswish(x: Array) -> Array:
    # Not x times hardsigmoid, which is NaN for -inf.
    return np.where(x <= -3, 0, np.where(x >= 3, x, x * (x + 3) / 6))


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _selu(x: Array) -> Array:
    # Klambauer et al. 2017: mean 0 and variance 1 are a fixed point with these.
    return 1.0507009873554805 * _elu(x, 1.6732632423543772)


relu = unary_op("relu", _relu, "Return the larger of the value and zero; NaN of NaN.")
relu6 = unary_op("relu6", lambda x: np.clip(x, 0, 6), "Return the value, at least 0 and at most 6.")
relu_squared = unary_op(
    "relu_squared",
    lambda x: np.square(_relu(x)),
    "Return the square of `relu`.",
    "Source: So et al. 2021, §4.",
)
sigmoid = unary_op(
    "sigmoid", sigmoid_reference, "Return the logistic function: ``1 / (1 + exp(-x))``."
)
hardsigmoid = unary_op(
    "hardsigmoid",
    lambda x: np.clip((x + 3) / 6, 0, 1),
    "Return a sigmoid of straight pieces: ``x / 6 + 1 / 2``, at least 0 and at most 1.",
)
log_sigmoid = unary_op(
    "log_sigmoid",
    lambda x: -_softplus(-x),
    "Return the logarithm of `sigmoid`: ``-log(1 + exp(-x))``.",
)
softplus = unary_op("softplus", _softplus, "Return a smooth `relu`: ``log(1 + exp(x))``.")
silu = unary_op("silu", _silu, "Return the value times its `sigmoid`: ``x / (1 + exp(-x))``.")
hardswish = unary_op(
    "hardswish",
    _hardswish,
    "Return the value times its `hardsigmoid`.",
    "Source: Howard et al. 2019, §5.2.",
)
mish = unary_op(
    "mish",
    lambda x: x * np.tanh(_softplus(x)),
    "Return the value times the `tanh` of its `softplus`.",
    "Source: Misra 2019, §3.",
)
gelu = unary_op(
    "gelu",
    _gelu,
    "Return the Gaussian error linear unit in its tanh form.",
    "Source: Hendrycks & Gimpel 2016, §2.",
)
gelu_erf = unary_op(
    "gelu_erf",
    _gelu_erf,
    "Return the Gaussian error linear unit by the error function.",
    "Source: Hendrycks & Gimpel 2016, eq. 1.",
)
quick_gelu = unary_op(
    "quick_gelu", _quick_gelu, "Return `gelu` in its sigmoid form: ``x / (1 + exp(-1.702 x))``."
)
tanh = unary_op("tanh", np.tanh, "Return the hyperbolic tangent.")
softsign = unary_op("softsign", lambda x: x / (1 + np.abs(x)), "Return ``x / (1 + |x|)``.")
selu = unary_op(
    "selu",
    _selu,
    "Return a scaled `elu`, by which layers keep mean 0 and variance 1.",
    "Source: Klambauer et al. 2017, §2.",
)


@op_maker()
def _gated_op(name: str, gate: Node, up: Node) -> Launch:
    """Launch a gated activation.

    Parameters
    ----------
    gate, up : (...), f32, f16 or bf16, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `gate`.
    """
    return binary(name, gate, up)


swiglu = _gated_op("swiglu", lambda g, up: _silu(g) * up, "Return `silu` of `gate`, times `up`.")
geglu = _gated_op("geglu", lambda g, up: _gelu(g) * up, "Return `gelu` of `gate`, times `up`.")
geglu_erf = _gated_op(
    "geglu_erf", lambda g, up: _gelu_erf(g) * up, "Return `gelu_erf` of `gate`, times `up`."
)
geglu_quick = _gated_op(
    "geglu_quick", lambda g, up: _quick_gelu(g) * up, "Return `quick_gelu` of `gate`, times `up`."
)
reglu = _gated_op("reglu", lambda g, up: _relu(g) * up, "Return `relu` of `gate`, times `up`.")


@op_maker()
def _weighted_op(name: str, x: Node, weight: Node) -> Launch:
    """Launch an activation with weights.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    weight : (...), f32, f16 or bf16, of a shape that broadcasts with that of `x`

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `x`; NaN stays NaN.
    """
    return binary(name, x, weight)


prelu = _weighted_op(
    "prelu",
    lambda x, weight: np.where(x > 0, x, x * weight),
    "Return the value above zero, its product with a weight below.",
    "Source: He et al. 2015, §2.1.",
)


def _with_number(name: str, x: Node, parameter: str, value: float) -> Launch:
    """Return the launch of an op whose WGSL builds on ``lib/elementwise/unary_with_number``."""
    require_number(name, parameter, value)
    require(is_finite(value), ShapeError, f"{name}: {parameter} is {value}, needs a finite number")
    launch = unary(name, x)
    return replace(launch, params={**launch.params, parameter: value})


def _check_bound(name: str, lambd: float) -> None:
    require_number(name, "lambd", lambd)
    require(lambd >= 0, ShapeError, f"{name}: lambd is {lambd}, needs 0 or more")


@op(trusted=True)
def elu(x: Node, alpha: float = 1.0) -> Launch:
    """Apply ELU: ``x`` above zero, ``alpha * (exp(x) - 1)`` below.

    Source: Clevert et al. 2016, §3.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    alpha : float
        Large negative values tend to -alpha.

    Returns
    -------
    Like `x`, dense; NaN stays NaN.
    """
    return _with_number("elu", x, "alpha", alpha)


elu.reference(_elu)


@op(trusted=True)
def celu(x: Node, alpha: float = 1.0) -> Launch:
    """Apply CELU: ``x`` above zero, ``alpha * (exp(x / alpha) - 1)`` below.

    Source: Barron 2017.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    alpha : float
        Large negative values tend to -alpha; not 0.

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
    """Compute the exponential only of negative values."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


@op(trusted=True)
def leaky_relu(x: Node, negative_slope: float = 0.01) -> Launch:
    """Apply leaky ReLU: ``x`` above zero, ``negative_slope * x`` below.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    negative_slope : float
        The fraction.

    Returns
    -------
    Like `x`, dense; NaN stays NaN.
    """
    return _with_number("leaky_relu", x, "negative_slope", negative_slope)


@leaky_relu.reference
def leaky_relu_reference(x: Array, negative_slope: float = 0.01) -> Array:
    """Multiply negative values by the slope."""
    return np.where(x > 0, x, x * x.dtype.type(negative_slope))


@op(trusted=True)
def hard_shrink(x: Node, lambd: float = 0.5) -> Launch:
    """Return the value where its magnitude is above a bound, else 0.

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
    _check_bound("hard_shrink", lambd)
    return _with_number("hard_shrink", x, "lambd", lambd)


@hard_shrink.reference
def hard_shrink_reference(x: Array, lambd: float = 0.5) -> Array:
    """Keep large values."""
    return np.where(np.abs(x) <= x.dtype.type(lambd), 0, x)


@op(trusted=True)
def softshrink(x: Node, lambd: float = 0.5) -> Launch:
    """Return the value moved towards zero by a bound; 0 within the bound.

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
    _check_bound("softshrink", lambd)
    return _with_number("softshrink", x, "lambd", lambd)


@softshrink.reference
def softshrink_reference(x: Array, lambd: float = 0.5) -> Array:
    """Move values towards zero."""
    kind = x.dtype.type
    rest = np.maximum(np.abs(x) - kind(lambd), kind(0))
    return np.where(rest == 0, kind(0), np.copysign(rest, x))


@op(trusted=True)
def step(x: Node, threshold: float = 0.0) -> Launch:
    """Return 1 where the value is above a threshold, else 0.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; 0 of NaN.
    """
    return _with_number("step", x, "threshold", threshold)


@step.reference
def step_reference(x: Array, threshold: float = 0.0) -> Array:
    """Compare with the threshold in the type of the values."""
    return (x > x.dtype.type(threshold)).astype(x.dtype)


@op(dense=("x", "up"), trusted=True)
def silu_alpha_limit(x: Node, up: Node, alpha: float, limit: float) -> Launch:
    """Return gpt-oss's gated activation ``g sigmoid(alpha g) (u + 1)``, both bounded by `limit`.

    Source: OpenAI 2025, gpt-oss's reference implementation, ``swiglu``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
        The gate: g is the value, at most `limit`.
    up : (...), of the same shape
        u is the value, within ``-limit … limit``.
    alpha : float
        1.702 in gpt-oss.
    limit : float
        7 in gpt-oss; more than 0.

    Returns
    -------
    Like `x`.

    Raises
    ------
    ShapeError
        Shapes differ, or `limit` is not more than 0.
    """
    require_dtype("silu_alpha_limit", "x", x, FLOATS)
    require_dtype("silu_alpha_limit", "up", up, FLOATS)
    require(
        x.spec.shape == up.spec.shape,
        ShapeError,
        f"silu_alpha_limit: x is {x.spec.shape}, up is {up.spec.shape}, needs the same shape",
    )
    require(limit > 0, ShapeError, f"silu_alpha_limit: limit is {limit}, needs more than 0")
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    return Launch(
        out,
        {"x": x, "up": up},
        threads=vec4s(out.size),
        params={"size": out.size, "alpha": alpha, "limit": limit},
        in_place=("x", "up"),
        work=3 * out.nbytes,
    )


@silu_alpha_limit.reference
def silu_alpha_limit_reference(x: Array, up: Array, alpha: float, limit: float) -> Array:
    """Compute in the type of the values."""
    kind = x.dtype.type
    gate = np.minimum(x, kind(limit))
    return (
        gate
        * sigmoid_reference(kind(alpha) * gate)
        * (np.clip(up, kind(-limit), kind(limit)) + kind(1))
    )


# Gated activations by the activation that they apply to the gate.
GATED = {
    "silu": swiglu,
    "gelu": geglu,
    "gelu_erf": geglu_erf,
    "quick_gelu": geglu_quick,
    "relu": reglu,
}


def _times(name: str) -> Replace:
    """Return the fusion rule for a multiplication that alone reads an activation."""

    def replace(node: OpNode, graph: Graph) -> Node | None:
        # Models write the gate first, so `b` is not looked at.
        activation = graph.single_use_producer(node.operands["a"], name)
        if activation is None:
            return None
        return graph.call(GATED[name], activation.operands["x"], node.operands["b"])

    return replace


for _name, _gated in GATED.items():
    _gated.fuses("mul")(_times(_name))
