"""The registry of NumPy twins: a function named as its op, with the op's parameters.

Tensors arrive as arrays (f16 and bf16 widened to f32, weights dequantised) and leave as arrays that
are converted to the dtype of the op's result. A twin of an op that writes into an operand writes
into that array.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from numpy.typing import NDArray

from wgpu_backend.errors import BackendError
from wgpu_backend.ops.op import TWINS

Array = NDArray[Any]
Twin = Callable[..., Array]
_HALVES: set[str] = set()


def twin(function: Twin) -> Twin:
    """Register a function as the twin of the op of its name."""
    TWINS[function.__name__] = function
    return function


def takes_f16(function: Twin) -> Twin:
    """Mark a twin that is given f16 tensors as they are, because it looks at few of their rows."""
    _HALVES.add(function.__name__)
    return function


def wants_f16(name: str) -> bool:
    """Whether the twin of an op takes f16 tensors as they are."""
    return name in _HALVES


def twin_of(name: str) -> Twin:
    """NumPy twin of an op.

    Raises
    ------
    BackendError
        The op has none, so the NumPy device cannot run it.
    """
    if name not in TWINS:
        package = import_module("wgpu_backend.cpu")
        for module in iter_modules(package.__path__):
            import_module(f"wgpu_backend.cpu.{module.name}")
    try:
        return TWINS[name]
    except KeyError:
        raise BackendError(f"op {name}: it has no NumPy twin, so it needs a GPU") from None
