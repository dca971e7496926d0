"""Activations with corners, numbers or weights, and those over an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from wgpu_backend.array import neural
from wgpu_backend.array.creation import full
from wgpu_backend.array.elementwise import Unary, of_floats
from wgpu_backend.array.lifting import lifted, promoted
from wgpu_backend.array.nn.activations import ACTIVATIONS, OfEachValue
from wgpu_backend.array.nn.module import Module
from wgpu_backend.dtypes import I32
from wgpu_backend.ops.elementwise import activation, rectifiers

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

relu6 = of_floats(rectifiers.relu6, "relu6", "`relu` up to 6.")
relu_squared = of_floats(
    rectifiers.relu_squared, "relu_squared", "`relu`, squared (So et al. 2021)."
)
hardswish = of_floats(
    rectifiers.hardswish, "hardswish", "``x · relu6(x + 3) / 6`` (Howard et al. 2019)."
)
selu = of_floats(
    rectifiers.selu,
    "selu",
    "`elu` times numbers that keep mean and variance (Klambauer et al. 2017).",
)
softsign = of_floats(activation.softsign, "softsign", "``x / (1 + |x|)``.")
mish = of_floats(activation.mish, "mish", "``x · tanh(softplus(x))`` (Misra 2019).")
log_sigmoid = of_floats(activation.log_sigmoid, "log_sigmoid", "Logarithm of `sigmoid`.")
celu = of_floats(
    rectifiers.celu, "celu", "x above 0, else ``alpha (exp(x / alpha) - 1)`` (Barron 2017)."
)
elu = of_floats(
    rectifiers.elu, "elu", "x above 0, else ``alpha (exp(x) - 1)`` (Clevert et al. 2016)."
)
leaky_relu = of_floats(
    rectifiers.leaky_relu, "leaky_relu", "x above 0, else a fraction of it (Maas et al. 2013)."
)
hard_shrink = of_floats(rectifiers.hard_shrink, "hard_shrink", "0 within ±lambd, else x.")
softshrink = of_floats(
    rectifiers.softshrink, "softshrink", "x moved towards 0 by lambd, and 0 within it."
)
hard_tanh = of_floats(rectifiers.hardtanh, "hard_tanh", "x cut to a range, -1 to 1.")
relu2 = relu_squared  # as MLX spells it
softplus = neural.softplus
softmax = neural.softmax
glu = neural.glu


def step(x: Array, /, threshold: float = 0.0) -> Array:
    """1 from a threshold on, below it 0: int32, as MLX has it."""
    from wgpu_backend.array.operators import greater_equal

    return greater_equal(x, threshold).astype(I32)


def log_softmax(x: Array, /, axis: int = -1) -> Array:
    """Logarithm of `softmax`, without what its smallest values lose."""
    from wgpu_backend.array.reductions import logsumexp

    return x - logsumexp(x, axis=axis, keepdims=True)


def softmin(x: Array, /, axis: int = -1) -> Array:
    """`softmax` of the negatives."""
    return softmax(-x, axis=axis)


def prelu(x: Array, weight: Array, /) -> Array:
    """X above 0, else its product with a weight that broadcasts (He et al. 2015)."""
    return lifted(rectifiers.prelu, "prelu", *promoted("prelu", x, weight))


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


class CELU(Module):
    """`celu` as a layer.

    Parameters
    ----------
    alpha : float
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return celu(x, alpha=self.alpha)


class ELU(Module):
    """`elu` as a layer.

    Parameters
    ----------
    alpha : float
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return elu(x, alpha=self.alpha)


class LeakyReLU(Module):
    """`leaky_relu` as a layer.

    Parameters
    ----------
    negative_slope : float
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return leaky_relu(x, negative_slope=self.negative_slope)


class HardShrink(Module):
    """`hard_shrink` as a layer.

    Parameters
    ----------
    lambd : float
    """

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return hard_shrink(x, lambd=self.lambd)


class Softshrink(Module):
    """`softshrink` as a layer.

    Parameters
    ----------
    lambd : float
    """

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return softshrink(x, lambd=self.lambd)


class Step(Module):
    """`step` as a layer.

    Parameters
    ----------
    threshold : float
    """

    def __init__(self, threshold: float = 0.0) -> None:
        self.threshold = threshold

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return step(x, threshold=self.threshold)


class HardTanh(Module):
    """`hard_tanh` as a layer.

    Parameters
    ----------
    low, high : float
    """

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = low, high

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return hard_tanh(x, low=self.low, high=self.high)


class PReLU(Module):
    """`prelu` as a layer.

    Parameters
    ----------
    num_parameters : int
        1, or as many as there are channels.
    init : float
        What weights start as.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.weight = full((num_parameters,), init)

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return prelu(x, self.weight)


class GLU(Module):
    """`glu` as a layer.

    Parameters
    ----------
    axis : int
        That is halved.
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Array) -> Array:
        """Half of the values times the sigmoid of the others."""
        return glu(x, axis=self.axis)


class _OfRows(Module):
    """A function of rows as a layer."""

    function: ClassVar[Unary]

    def __call__(self, x: Array) -> Array:
        """Of each row."""
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


ACTIVATIONS.update(
    {
        "relu6": relu6, "relu2": relu_squared, "elu": elu, "selu": selu, "leaky_relu": leaky_relu,
        "hardswish": hardswish, "mish": mish, "softplus": softplus,
    }
)  # fmt: skip
