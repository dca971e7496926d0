"""The devices of arrays, and the array API's inspection of the namespace.

New arrays lie on the default device: the best there is, opened when the first array is made.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from wgpu_backend.array import devices, types
from wgpu_backend.array.session import Session
from wgpu_backend.array.types import isdtype
from wgpu_backend.dtypes import COMPLEX64, F32, I32, DType
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.opening import choose_device, open_executor

# Elementwise chains, and what compiled functions that may round have in f16.
RULES = (
    "chain",
    "convolve_matrix",
    "linear_f16",
    "linear_f16_once",
    "linear_matrix",
    "scaled_attention_matrix",
    "scaled_attention_tiles",
)
_sessions: dict[str, Session] = {}  # by the id of their device
# At most one; a list, since functions change it.
_default: list[Session] = []
_opening = threading.RLock()
# A context variable: `stream` is for one thread or task, not for all.
_preferred: ContextVar[Session | None] = ContextVar("preferred", default=None)


def session(which: str | DeviceInfo | None = None) -> Session:
    """Return the session of a device, opened at the first call; None is the default device.

    Raises
    ------
    DeviceError
        There is no such device.
    """
    if which is None and (preferred := _preferred.get()) is not None:
        return preferred
    if which is None and _default:
        return _default[0]
    with _opening:
        # Another thread may have opened the device while this one waited for the lock.
        if which is None and _default:
            return _default[0]
        _, info = choose_device(which)
        found = _sessions.get(info.id)
        if found is None:
            found = _sessions[info.id] = Session(open_executor(info, fusion=RULES, exact=False))
        if which is None:
            _default.append(found)
        return found


def set_default_device(which: str | DeviceInfo) -> None:
    """Make new arrays on a device from now on.

    Parameters
    ----------
    which : str or DeviceInfo
        An id, a kind, or a part of a name, as for ``Devices().find``; ``"cpu"`` is NumPy.
    """
    found = session(which)
    if _preferred.get() is None:
        _default[:] = [found]
    else:
        # Inside `preferring`, which restores the device before.
        _preferred.set(found)


@contextmanager
def preferring(wanted: Session) -> Generator[None]:
    """Create this thread's new arrays in a session, inside the `with` block."""
    token = _preferred.set(wanted)
    try:
        yield
    finally:
        _preferred.reset(token)


def default_device() -> DeviceInfo:
    """Return the device of new arrays."""
    return session().executor.info


def close(which: str | DeviceInfo | None = None) -> None:
    """Close a device with all its arrays, or all devices; the next array opens one again."""
    wanted = None if which is None else choose_device(which)[1].id
    # A copy of the keys: sessions leave the dictionary meanwhile.
    for key in [k for k in _sessions if wanted in (None, k)]:
        closed = _sessions.pop(key)
        _default[:] = [s for s in _default if s is not closed]
        if _preferred.get() is closed:
            _preferred.set(None)
        closed.close()


def on(device: object) -> Session:
    """Return the session for the `device=` of a function: None, a session, a device or its name."""
    if isinstance(device, Session):
        return device
    if device is None or isinstance(device, str | DeviceInfo):
        return session(device)
    raise DeviceError(f"device {device!r}: needs a DeviceInfo, an id, or a part of a name")


atexit.register(close)


_STANDARD: dict[str, DType] = {
    name: getattr(types, "bool_" if name == "bool" else name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64"),
    )
}


class Namespace:
    """The devices, types and abilities of the namespace; see `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Return the namespace's abilities by name; views and copies limit the number of axes."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": 8,
        }

    def default_device(self) -> DeviceInfo:
        """Return the device of new arrays."""
        return devices.default_device()

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return the default device; `wgpu_backend.Devices` lists all."""
        return (devices.default_device(),)

    def default_dtypes(self, *, device: object = None) -> dict[str, DType]:
        """Return the types of new arrays; they are the same on all devices."""
        return {
            "real floating": F32,
            "complex floating": COMPLEX64,
            "integral": I32,
            "indexing": I32,
        }

    def dtypes(self, *, device: object = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's types by name, all or those of a kind; see `isdtype`.

        Arrays of float64 can be stored and moved, but not computed with.
        """
        return {n: d for n, d in _STANDARD.items() if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> Namespace:  # noqa: N807
    """Return the devices, types and abilities of the namespace."""
    return Namespace()
