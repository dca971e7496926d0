"""Activations, as functions and as layers without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from wgpu_backend.array.elementwise import Unary, of_floats
from wgpu_backend.array.nn.module import Module
from wgpu_backend.errors import OptionError
from wgpu_backend.ops.elementwise import activation as ops

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

relu = of_floats(ops.relu, "relu", "Positive values; 0 for others.")
sigmoid = of_floats(ops.sigmoid, "sigmoid", "``1 / (1 + exp(-x))``.")
silu = of_floats(ops.silu, "silu", "``x · sigmoid(x)``.")
tanh = of_floats(ops.tanh, "tanh", "Hyperbolic tangent.")
gelu = of_floats(ops.gelu_erf, "gelu", "``x · Φ(x)``, exactly (Hendrycks & Gimpel 2016, eq. 1).")
gelu_approx = of_floats(ops.gelu, "gelu_approx", "`gelu` by a hyperbolic tangent.")
gelu_fast_approx = of_floats(
    ops.quick_gelu, "gelu_fast_approx", "`gelu` by a sigmoid: ``x · sigmoid(1.702 x)``."
)


class OfEachValue(Module):
    """A function as a layer."""

    function: ClassVar[Unary]

    def __call__(self, x: Array) -> Array:
        """Of each value."""
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
        if approx not in self._FUNCTIONS:
            raise OptionError(f"GELU: approx is {approx!r}, needs one of {[*self._FUNCTIONS]}")
        self._function = self._FUNCTIONS[approx]

    def __call__(self, x: Array) -> Array:
        """Of each value."""
        return self._function(x)


def activation(name: str) -> Unary:
    """Activation that configurations of transformers and diffusers call so.

    Raises
    ------
    OptionError
        There is none of that name.
    """
    if name not in ACTIVATIONS:
        raise OptionError(f"activation is {name!r}, known are {', '.join(ACTIVATIONS)}")
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
}
