"""NumPy twins of `wgpu_backend.ops.elementwise.activation`."""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.cpu.twin import Array, twin

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@twin
def sigmoid(x: Array) -> Array:
    """Logistic function; exp only of negative numbers, so nothing overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


@twin
def silu(x: Array) -> Array:
    """Sigmoid-weighted value."""
    return x * sigmoid(x)


@twin
def gelu(x: Array) -> Array:
    """GELU, the tanh form; (1 + tanh(u)) / 2 is written as a sigmoid, which does not cancel."""
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))


@twin
def gelu_erf(x: Array) -> Array:
    """GELU, by the error function; its complement, as 1 + erf cancels for negative numbers."""
    return 0.5 * x * _erfc(-x / math.sqrt(2))


@twin
def quick_gelu(x: Array) -> Array:
    """GELU, the sigmoid form."""
    return x * sigmoid(1.702 * x)


@twin
def relu(x: Array) -> Array:
    """Larger of the value and zero."""
    return np.maximum(x, 0)


@twin
def tanh(x: Array) -> Array:
    """Hyperbolic tangent."""
    return np.tanh(x)


@twin
def softsign(x: Array) -> Array:
    """Value over its size and one more."""
    return x / (1 + np.abs(x))


@twin
def mish(x: Array) -> Array:
    """Value times tanh of softplus."""
    return x * np.tanh(np.logaddexp(x, x.dtype.type(0)))


@twin
def log_sigmoid(x: Array) -> Array:
    """Logarithm of the sigmoid."""
    return -np.logaddexp(-x, x.dtype.type(0))


@twin
def swiglu(gate: Array, up: Array) -> Array:
    """`silu` of the gate, times up."""
    return silu(gate) * up


@twin
def geglu(gate: Array, up: Array) -> Array:
    """`gelu` of the gate, times up."""
    return gelu(gate) * up


@twin
def geglu_erf(gate: Array, up: Array) -> Array:
    """`gelu_erf` of the gate, times up."""
    return gelu_erf(gate) * up


@twin
def geglu_quick(gate: Array, up: Array) -> Array:
    """`quick_gelu` of the gate, times up."""
    return quick_gelu(gate) * up


@twin
def reglu(gate: Array, up: Array) -> Array:
    """`relu` of the gate, times up."""
    return relu(gate) * up


@twin
def silu_alpha_limit(x: Array, up: Array, alpha: float, limit: float) -> Array:
    """Gated activation of gpt-oss."""
    kind = x.dtype.type
    gate = np.minimum(x, kind(limit))
    return gate * sigmoid(kind(alpha) * gate) * (np.clip(up, kind(-limit), kind(limit)) + kind(1))
