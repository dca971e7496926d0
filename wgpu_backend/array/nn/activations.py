"""Activations, as functions and as layers without weights.

Most functions are rows: an op of `wgpu_backend.ops.elementwise`, and a name where MLX has another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from wgpu_backend.array import neural
from wgpu_backend.array.creation import full
from wgpu_backend.array.elementwise import Unary, float_function, sigmoid, tanh
from wgpu_backend.array.nn.module import Module
from wgpu_backend.array.promotion import apply_op, promote_operands
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import OptionError
from wgpu_backend.ops.elementwise import activation as ops
from wgpu_backend.ops.elementwise import clamp

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

relu = neural.relu
silu = neural.silu
gelu = neural.gelu
gelu_approx = neural.gelu_approx
gelu_fast_approx = float_function(ops.quick_gelu, "gelu_fast_approx")
relu6 = float_function(ops.relu6)
relu_squared = neural.relu_squared
relu2 = relu_squared  # as MLX spells it
hardswish = float_function(ops.hardswish)
selu = float_function(ops.selu)
softsign = float_function(ops.softsign)
mish = float_function(ops.mish)
log_sigmoid = float_function(ops.log_sigmoid)
celu = float_function(ops.celu)
elu = float_function(ops.elu)
leaky_relu = float_function(ops.leaky_relu)
hard_shrink = float_function(ops.hard_shrink)
softshrink = float_function(ops.softshrink)
hard_tanh = float_function(clamp.hardtanh, "hard_tanh")
softplus = neural.softplus
softmax = neural.softmax
glu = neural.glu


def step(x: Array, /, threshold: float = 0.0) -> Array:
    """Return 1 from a threshold on, else 0: int32, as in MLX."""
    from wgpu_backend.array.operators import greater_equal

    return greater_equal(x, threshold).astype(I32)


def log_softmax(x: Array, /, axis: int = -1) -> Array:
    """Return the logarithm of `softmax`, also where `softmax` is too small for its type."""
    from wgpu_backend.array.reductions import logsumexp

    return x - logsumexp(x, axis=axis, keepdims=True)


def softmin(x: Array, /, axis: int = -1) -> Array:
    """Return `softmax` of the negatives."""
    return softmax(-x, axis=axis)


def prelu(x: Array, weight: Array, /) -> Array:
    """Return x above 0, else its product with a weight that broadcasts (He et al. 2015)."""
    return apply_op(ops.prelu, "prelu", *promote_operands("prelu", x, weight))


class OfEachValue(Module):
    """A layer that applies a function to each value."""

    function: ClassVar[Unary]

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return type(self).function(x)


class ReLU(OfEachValue):
    """`relu` as a layer."""

    function = staticmethod(relu)


class Sigmoid(OfEachValue):
    """`sigmoid` as a layer."""

    function = staticmethod(sigmoid)


class SiLU(OfEachValue):
    """`silu` as a layer."""

    function = staticmethod(silu)


class Tanh(OfEachValue):
    """`tanh` as a layer."""

    function = staticmethod(tanh)


class ReLU6(OfEachValue):
    """`relu6` as a layer."""

    function = staticmethod(relu6)


class ReLU2(OfEachValue):
    """`relu_squared` as a layer."""

    function = staticmethod(relu_squared)


class Hardswish(OfEachValue):
    """`hardswish` as a layer."""

    function = staticmethod(hardswish)


class SELU(OfEachValue):
    """`selu` as a layer."""

    function = staticmethod(selu)


class Softsign(OfEachValue):
    """`softsign` as a layer."""

    function = staticmethod(softsign)


class Mish(OfEachValue):
    """`mish` as a layer."""

    function = staticmethod(mish)


class LogSigmoid(OfEachValue):
    """`log_sigmoid` as a layer."""

    function = staticmethod(log_sigmoid)


class Softplus(OfEachValue):
    """`softplus` as a layer."""

    function = staticmethod(softplus)


class GELU(Module):
    """`gelu` as a layer.

    Parameters
    ----------
    approx : str
        ``none``; ``tanh`` or ``precise``: by a hyperbolic tangent; ``fast``: by a sigmoid.
    """

    _FUNCTIONS: ClassVar[dict[str, Unary]] = {
        "none": gelu,
        "tanh": gelu_approx,
        "precise": gelu_approx,
        "fast": gelu_fast_approx,
    }

    def __init__(self, approx: Literal["none", "tanh", "precise", "fast"] = "none") -> None:
        # At once and not at the first call, which may be far from the mistake.
        if approx not in self._FUNCTIONS:
            raise OptionError(f"GELU: approx is {approx!r}, needs one of {[*self._FUNCTIONS]}")
        self._function = self._FUNCTIONS[approx]

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return self._function(x)


class CELU(Module):
    """`celu` as a layer."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return celu(x, alpha=self.alpha)


class ELU(Module):
    """`elu` as a layer."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return elu(x, alpha=self.alpha)


class LeakyReLU(Module):
    """`leaky_relu` as a layer."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return leaky_relu(x, negative_slope=self.negative_slope)


class HardShrink(Module):
    """`hard_shrink` as a layer."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return hard_shrink(x, lambd=self.lambd)


class Softshrink(Module):
    """`softshrink` as a layer."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return softshrink(x, lambd=self.lambd)


class Step(Module):
    """`step` as a layer."""

    def __init__(self, threshold: float = 0.0) -> None:
        self.threshold = threshold

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return step(x, threshold=self.threshold)


class HardTanh(Module):
    """`hard_tanh` as a layer."""

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = low, high

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return hard_tanh(x, low=self.low, high=self.high)


class PReLU(Module):
    """`prelu` as a layer.

    Parameters
    ----------
    num_parameters : int
        1, or as many as there are channels.
    init : float
        Initial value of the weights.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.weight = full((num_parameters,), init)

    def __call__(self, x: Array) -> Array:
        """Apply the activation to each value."""
        return prelu(x, self.weight)


class GLU(Module):
    """`glu` as a layer.

    Parameters
    ----------
    axis : int
        Axis to halve.
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Array) -> Array:
        """Multiply half of the values by the sigmoid of the others."""
        return glu(x, axis=self.axis)


class _OfRows(Module):
    """A layer that applies a function to each row."""

    function: ClassVar[Unary]

    def __call__(self, x: Array) -> Array:
        """Apply the function to each row."""
        return type(self).function(x, axis=-1)


class Softmax(_OfRows):
    """`softmax` of rows as a layer."""

    function = staticmethod(softmax)


class LogSoftmax(_OfRows):
    """`log_softmax` of rows as a layer."""

    function = staticmethod(log_softmax)


class Softmin(_OfRows):
    """`softmin` of rows as a layer."""

    function = staticmethod(softmin)


def activation(name: str) -> Unary:
    """Return the activation that a configuration of transformers or diffusers names.

    Raises
    ------
    OptionError
        No activation has that name.
    """
    if name not in ACTIVATIONS:
        raise OptionError(f"activation is {name!r}, needs one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


ACTIVATIONS: dict[str, Unary] = {
    "relu": relu,
    "silu": silu,
    "swish": silu,
    "gelu": gelu,
    "gelu_new": gelu_approx,
    "gelu_pytorch_tanh": gelu_approx,
    "gelu-approximate": gelu_approx,
    "quick_gelu": gelu_fast_approx,
    "tanh": tanh,
    "relu6": relu6,
    "relu2": relu_squared,
    "elu": elu,
    "selu": selu,
    "leaky_relu": leaky_relu,
    "hardswish": hardswish,
    "mish": mish,
    "softplus": softplus,
}
