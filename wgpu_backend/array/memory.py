"""When arrays are computed and how long they live: eval, keep, sweep, figures and limits.

Memory is given back when Python lets go of an array. `sweep` is for who cannot wait for that: it
frees all arrays that were neither kept nor wanted.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from wgpu_backend.array import devices
from wgpu_backend.array.session import Session
from wgpu_backend.array.trees import leaves
from wgpu_backend.errors import OptionError
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def eval(*trees: Any) -> None:
    """Compute arrays, in lists and dictionaries too, and wait for them."""
    for session in _evaluate(trees):
        session.wait()


def async_eval(*trees: Any) -> None:
    """Hand the computation of arrays to the device, without waiting for it."""
    _evaluate(trees)


def _evaluate(trees: Any) -> list[Session]:
    by_session: dict[int, tuple[Session, list[Any]]] = {}
    for array in leaves(trees):
        by_session.setdefault(id(array.session), (array.session, []))[1].append(array.node)
    for session, nodes in by_session.values():
        session.evaluate(nodes)
    return [session for session, _ in by_session.values()]


def keep(*trees: Any) -> None:
    """Mark arrays that `sweep` leaves alone: weights and caches."""
    for array in leaves(trees):
        array.kept = True


def sweep(*trees: Any) -> None:
    """Compute arrays, and free all others that are not kept; using those is an error then.

    What the wanted ones are made of is freed as soon as it is not needed any more.
    """
    wanted = {id(a) for a in leaves(trees)}
    for array in live_arrays():
        if not array.kept and id(array) not in wanted:
            array.free()
    eval(*trees)


def free(*trees: Any) -> None:
    """Free arrays at once; using them is an error then."""
    for array in leaves(trees):
        array.free()


def live_arrays() -> list[Array]:
    """Arrays of the default device that Python holds, the largest first."""
    found = [cast("Array", a) for a in devices.session().holders()]
    return sorted(found, key=lambda a: -a.nbytes)


def debug_arrays(top: int = 20) -> str:
    """Table of the largest live arrays of the default device."""
    rows = [(str(a.shape), a.dtype.name, a.nbytes, _state(a)) for a in live_arrays()[:top]]
    lines = [f"{'shape':<24}{'dtype':<10}{'bytes':>14}  state"]
    lines += [
        f"{shape:<24}{dtype:<10}{nbytes:>14,}  {state}" for shape, dtype, nbytes, state in rows
    ]
    return "\n".join(lines)


def _state(array: Array) -> str:
    words = ["computed" if array.is_evaluated else "waiting", "kept" if array.kept else ""]
    return " ".join(w for w in words if w)


def get_active_memory() -> int:
    """Bytes of arrays of the default device that have been computed or uploaded."""
    return devices.session().active_nbytes


def get_peak_memory() -> int:
    """Most bytes that were in use at once, what was needed meanwhile included."""
    return devices.session().peak_nbytes


def reset_peak_memory() -> None:
    """Count the peak from now on."""
    session = devices.session()
    session.peak_nbytes = session.active_nbytes


def get_cache_memory() -> int:
    """Bytes that were freed and are kept for reuse."""
    return devices.session().executor.cached_nbytes()


def clear_cache() -> None:
    """Give what is kept for reuse back to the device."""
    devices.session().executor.cached_nbytes(0)


def set_cache_limit(nbytes: int) -> None:
    """Keep at most so many bytes for reuse from now on."""
    executor = devices.session().executor
    if nbytes < 0:
        raise OptionError(f"set_cache_limit: {nbytes} bytes, needs at least 0")
    if isinstance(executor, WgpuExecutor):
        executor.device.keep_for_reuse(nbytes)


def set_memory_limit(nbytes: int | None) -> int | None:
    """Refuse what would take more bytes than these; None lifts the limit.

    Returns
    -------
    int or None
        The limit before.
    """
    session = devices.session()
    before, session.limit_nbytes = session.limit_nbytes, nbytes
    return before


def get_memory_limit() -> int | None:
    """Most bytes that may be in use, or None."""
    return devices.session().limit_nbytes


def synchronize(stream: Stream | None = None) -> None:
    """Wait until the device has done all it was given."""
    (stream.session if stream else devices.session()).wait()


@dataclass(frozen=True, slots=True)
class Stream:
    """An order in which work is done.

    WebGPU has one queue a device, so all streams of a device are that one: work runs in the order
    in which it is handed over, whatever stream it names.
    """

    session: Session


def new_stream(device: object = None) -> Stream:
    """Stream of a device."""
    return Stream(devices.on(device))


def default_stream(device: object = None) -> Stream:
    """Stream that work of a device goes to."""
    return Stream(devices.on(device))


@contextmanager
def stream(where: Stream | str) -> Generator[None]:
    """Make new arrays on the device of a stream, or on a device by name, inside the block."""
    session = where.session if isinstance(where, Stream) else devices.session(where)
    with devices.preferring(session):
        yield
