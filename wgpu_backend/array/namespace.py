"""What the array API standard asks of a namespace: its devices, types and abilities."""

from __future__ import annotations

from typing import Any

from wgpu_backend.array import devices, types
from wgpu_backend.array.types import isdtype
from wgpu_backend.dtypes import COMPLEX64, F32, I32, DType
from wgpu_backend.graph.capabilities import DeviceInfo

_STANDARD: dict[str, DType] = {
    name: getattr(types, "bool_" if name == "bool" else name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64"),
    )
}


class Namespace:
    """What the namespace has; `__array_namespace_info__` gives one."""

    def capabilities(self) -> dict[str, Any]:
        """Abilities by their names; views and copies take eight axes that cannot be joined."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": 8,
        }

    def default_device(self) -> DeviceInfo:
        """Device of new arrays."""
        return devices.default_device()

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The default device; others are opened by their names, see `wgpu_backend.Devices`."""
        return (devices.default_device(),)

    def default_dtypes(self, *, device: object = None) -> dict[str, DType]:
        """Types of new arrays; they are the same on all devices."""
        return {
            "real floating": F32,
            "complex floating": COMPLEX64,
            "integral": I32,
            "indexing": I32,
        }

    def dtypes(self, *, device: object = None, kind: Any = None) -> dict[str, DType]:
        """The standard's types by their names, all or those of a kind; see `isdtype`.

        Of float64 arrays are stored and moved, and nothing is computed.
        """
        return {n: d for n, d in _STANDARD.items() if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> Namespace:  # noqa: N807
    """What the namespace has: devices, types, abilities."""
    return Namespace()
