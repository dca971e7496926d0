"""Activations, and gated activations ``act(gate) * up``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require, require_dtype, require_rank, vec4s
from wgpu_backend.ops.elementwise.arithmetic import binary, in_registers
from wgpu_backend.ops.elementwise.wide import WIDE, wide
from wgpu_backend.ops.op import Replace, op
from wgpu_backend.ops.reference import Array


def unary(
    name: str,
    x: Node,
    allowed: tuple[DType, ...] = FLOATS,
    choices: Mapping[str, str | bool] | None = None,
    result: DType | None = None,
) -> Launch:
    """Launch of an op whose WGSL builds on ``lib/elementwise/unary``; see `binary`."""
    require_rank(name, "x", x, 0)
    require_dtype(name, "x", x, allowed)
    out = Spec.dense(x.spec.shape, result or x.spec.dtype)
    if x.spec.dtype in WIDE:
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


@op(trusted=True)
def silu(x: Node) -> Launch:
    """Sigmoid-weighted value: ``x / (1 + exp(-x))``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("silu", x)


@silu.reference
def silu_reference(x: Array) -> Array:
    """Sigmoid-weighted value."""
    return x * sigmoid_reference(x)


@op(trusted=True)
def gelu(x: Node) -> Launch:
    """Gaussian error linear unit, the tanh form.

    Source: Hendrycks & Gimpel 2016, §2.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("gelu", x)


@gelu.reference
def gelu_reference(x: Array) -> Array:
    """GELU, the tanh form; (1 + tanh(u)) / 2 is written as a sigmoid, which does not cancel."""
    return x * sigmoid_reference(2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))


@op(trusted=True)
def gelu_erf(x: Node) -> Launch:
    """Gaussian error linear unit, by the error function.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("gelu_erf", x)


@gelu_erf.reference
def gelu_erf_reference(x: Array) -> Array:
    """GELU, by the error function; its complement, as 1 + erf cancels for negative numbers."""
    return 0.5 * x * _erfc(-x / math.sqrt(2))


@op(trusted=True)
def quick_gelu(x: Node) -> Launch:
    """Sigmoid form of GELU: ``x / (1 + exp(-1.702 x))``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("quick_gelu", x)


@quick_gelu.reference
def quick_gelu_reference(x: Array) -> Array:
    """GELU, the sigmoid form."""
    return x * sigmoid_reference(1.702 * x)


@op(trusted=True)
def relu(x: Node) -> Launch:
    """Larger of the value and zero; NaN where it is NaN.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("relu", x)


@relu.reference
def relu_reference(x: Array) -> Array:
    """Larger of the value and zero."""
    return np.maximum(x, 0)


@op(trusted=True)
def tanh(x: Node) -> Launch:
    """Hyperbolic tangent.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("tanh", x)


@tanh.reference
def tanh_reference(x: Array) -> Array:
    """Hyperbolic tangent."""
    return np.tanh(x)


@op(trusted=True)
def sigmoid(x: Node) -> Launch:
    """Logistic function: ``1 / (1 + exp(-x))``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("sigmoid", x)


@sigmoid.reference
def sigmoid_reference(x: Array) -> Array:
    """Logistic function; exp only of negative numbers, so nothing overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


@op(trusted=True)
def softsign(x: Node) -> Launch:
    """Value over its size and one more: ``x / (1 + |x|)``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("softsign", x)


@softsign.reference
def softsign_reference(x: Array) -> Array:
    """Value over its size and one more."""
    return x / (1 + np.abs(x))


@op(trusted=True)
def mish(x: Node) -> Launch:
    """Value times the `tanh` of its `softplus`.

    Source: Misra 2019, §3.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("mish", x)


@mish.reference
def mish_reference(x: Array) -> Array:
    """Value times tanh of softplus."""
    return x * np.tanh(np.logaddexp(x, x.dtype.type(0)))


@op(trusted=True)
def log_sigmoid(x: Node) -> Launch:
    """Logarithm of the logistic function: ``-log(1 + exp(-x))``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("log_sigmoid", x)


@log_sigmoid.reference
def log_sigmoid_reference(x: Array) -> Array:
    """Logarithm of the sigmoid."""
    return -np.logaddexp(-x, x.dtype.type(0))


@op(trusted=True)
def swiglu(gate: Node, up: Node) -> Launch:
    """Gated activation: `silu` of `gate`, times `up`.

    Parameters
    ----------
    gate, up : (...), f32, f16 or bf16, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `gate`.
    """
    return binary("swiglu", gate, up)


@swiglu.reference
def swiglu_reference(gate: Array, up: Array) -> Array:
    """`silu` of the gate, times up."""
    return silu_reference(gate) * up


@op(trusted=True)
def geglu(gate: Node, up: Node) -> Launch:
    """Gated activation: `gelu` of `gate`, times `up`.

    Parameters
    ----------
    gate, up : (...), f32, f16 or bf16, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `gate`.
    """
    return binary("geglu", gate, up)


@geglu.reference
def geglu_reference(gate: Array, up: Array) -> Array:
    """`gelu` of the gate, times up."""
    return gelu_reference(gate) * up


@op(trusted=True)
def geglu_erf(gate: Node, up: Node) -> Launch:
    """Gated activation: `gelu_erf` of `gate`, times `up`.

    Parameters
    ----------
    gate, up : (...), f32, f16 or bf16, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `gate`.
    """
    return binary("geglu_erf", gate, up)


@geglu_erf.reference
def geglu_erf_reference(gate: Array, up: Array) -> Array:
    """`gelu_erf` of the gate, times up."""
    return gelu_erf_reference(gate) * up


@op(trusted=True)
def geglu_quick(gate: Node, up: Node) -> Launch:
    """Gated activation: `quick_gelu` of `gate`, times `up`.

    Parameters
    ----------
    gate, up : (...), f32, f16 or bf16, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `gate`.
    """
    return binary("geglu_quick", gate, up)


@geglu_quick.reference
def geglu_quick_reference(gate: Array, up: Array) -> Array:
    """`quick_gelu` of the gate, times up."""
    return quick_gelu_reference(gate) * up


@op(trusted=True)
def reglu(gate: Node, up: Node) -> Launch:
    """Gated activation: `relu` of `gate`, times `up`.

    Parameters
    ----------
    gate, up : (...), f32, f16 or bf16, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `gate`.
    """
    return binary("reglu", gate, up)


@reglu.reference
def reglu_reference(gate: Array, up: Array) -> Array:
    """`relu` of the gate, times up."""
    return relu_reference(gate) * up


@op(dense=("x", "up"), trusted=True)
def silu_alpha_limit(x: Node, up: Node, alpha: float, limit: float) -> Launch:
    """Gated activation of gpt-oss: ``g sigmoid(alpha g) (u + 1)``, both bounded by `limit`.

    Source: OpenAI 2025, gpt-oss's reference implementation, ``swiglu``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
        The gate; g is its value, at most `limit`.
    up : (...), of the same shape
        u is its value, within ``-limit … limit``.
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
    """Gated activation of gpt-oss."""
    kind = x.dtype.type
    gate = np.minimum(x, kind(limit))
    return (
        gate
        * sigmoid_reference(kind(alpha) * gate)
        * (np.clip(up, kind(-limit), kind(limit)) + kind(1))
    )


# Gated activations by the one they apply to the gate.
GATED = {
    "silu": swiglu,
    "gelu": geglu,
    "gelu_erf": geglu_erf,
    "quick_gelu": geglu_quick,
    "relu": reglu,
}


def _times(name: str) -> Replace:
    """Rule for an activation that only a product value by value reads."""

    def replace(node: OpNode, graph: Graph) -> Node | None:
        activation = graph.single_use_producer(node.operands["a"], name)
        if activation is None:
            return None
        return graph.call(GATED[name], activation.operands["x"], node.operands["b"])

    return replace


for _name, _gated in GATED.items():
    _gated.fuses("mul")(_times(_name))


_erfc = np.vectorize(math.erfc, otypes=[np.float64])
