"""Layers without weights that hold or pass on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.core import wrap
from wgpu_backend.array.nn.module import Module

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


class Sequential(Module):
    """Layers, each called with what the one before gave.

    Parameters
    ----------
    *layers : Module or callable
    """

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        """What the last layer gives."""
        for layer in self.layers:
            x = layer(x)
        return x


class Identity(Module):
    """Gives what it gets, whatever it is made with."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __call__(self, x: Array) -> Array:
        """The same values, as an array of its own."""
        return wrap(x.node)


class Dropout(Identity):
    """Nothing is dropped: networks do not train here."""


class Dropout2d(Identity):
    """Nothing is dropped: networks do not train here."""


class Dropout3d(Identity):
    """Nothing is dropped: networks do not train here."""
