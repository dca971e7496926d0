"""NumPy references of ops: functions that compute on the host the same as an op's kernels.

An op's reference is in the op's file, registered by ``@NAME.reference``. It has the op's
parameters. Tensors are passed as arrays (f16 and bf16 widened to f32, weights dequantised), and the
result is converted to the dtype of the op's result. The reference of an op that writes into an
operand writes into that array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from wgpu_backend.errors import BackendError

Array = NDArray[Any]
Reference = Callable[..., Array]
# References by the name of their op.
REFERENCES: dict[str, Reference] = {}
_TAKES_F16: set[Reference] = set()


def takes_f16(function: Reference) -> Reference:
    """Mark a reference that takes f16 tensors without widening, as it reads few of their rows."""
    _TAKES_F16.add(function)
    return function


def wants_f16(name: str) -> bool:
    """Return whether the reference of an op takes f16 tensors without widening."""
    return REFERENCES.get(name) in _TAKES_F16


def get_reference(name: str) -> Reference:
    """Return the NumPy reference of an op.

    Raises
    ------
    BackendError
        The op has none, so the NumPy device cannot run it.
    """
    try:
        return REFERENCES[name]
    except KeyError:
        raise BackendError(f"op {name}: it has no NumPy reference, so it needs a GPU") from None
