"""The device that new arrays lie on: the best there is, opened when the first array is made."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from wgpu_backend.array.session import Session
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.opening import choose_device, open_executor

_sessions: dict[str, Session] = {}  # by the id of their device
_default: list[Session] = []  # at most one
_opening = threading.RLock()
_preferred: ContextVar[Session | None] = ContextVar("preferred", default=None)


def session(which: str | DeviceInfo | None = None) -> Session:
    """Session of a device, opened at the first call; of the default device for None.

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
        if which is None and _default:  # another thread was first
            return _default[0]
        _, info = choose_device(which)
        found = _sessions.get(info.id)
        if found is None:
            found = _sessions[info.id] = Session(open_executor(info, fusion=["chain"]))
        if which is None:
            _default.append(found)
        return found


def set_default_device(which: str | DeviceInfo) -> None:
    """Make new arrays on a device from now on.

    Parameters
    ----------
    which : str or DeviceInfo
        What ``Devices().find`` understands: an id, a kind, a part of a name; ``"cpu"`` is NumPy.
    """
    found = session(which)
    if _preferred.get() is None:
        _default[:] = [found]
    else:  # inside `preferring`, which undoes it
        _preferred.set(found)


@contextmanager
def preferring(wanted: Session) -> Generator[None]:
    """Make new arrays of this thread in a session inside the block."""
    token = _preferred.set(wanted)
    try:
        yield
    finally:
        _preferred.reset(token)


def default_device() -> DeviceInfo:
    """Device that new arrays lie on."""
    return session().executor.info


def close(which: str | DeviceInfo | None = None) -> None:
    """Close a device with all its arrays, or all devices; the next array opens one again."""
    wanted = None if which is None else choose_device(which)[1].id
    for key in [k for k in _sessions if wanted in (None, k)]:
        closed = _sessions.pop(key)
        _default[:] = [s for s in _default if s is not closed]
        if _preferred.get() is closed:
            _preferred.set(None)
        closed.close()


def on(device: object) -> Session:
    """Session for the `device=` of a function: None, a session, a device, or what names one."""
    if isinstance(device, Session):
        return device
    if device is None or isinstance(device, str | DeviceInfo):
        return session(device)
    raise DeviceError(f"device {device!r}: needs a DeviceInfo, an id, or a part of a name")


atexit.register(close)
