"""Computing arrays, their lifetimes and their memory; arrays in trees of containers.

Memory is given back when Python drops an array. `sweep` does not wait for that: it frees all
arrays that were neither kept nor asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from wgpu_backend.array import devices
from wgpu_backend.array.base import ArrayBase
from wgpu_backend.array.session import Session
from wgpu_backend.errors import OptionError
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def leaves(tree: Any) -> Iterator[Array]:
    """Yield the arrays in a tree, in order; a module counts as its parameters."""
    if isinstance(tree, ArrayBase):
        yield cast("Array", tree)
    elif isinstance(tree, dict):
        for value in cast("dict[Any, Any]", tree).values():
            yield from leaves(value)
    elif isinstance(tree, list | tuple):
        for value in cast("list[Any]", tree):
            yield from leaves(value)
    elif hasattr(tree, "parameters"):
        yield from leaves(tree.parameters())


def map_tree(change: Callable[[Any], Any], tree: Any, kind: type = ArrayBase) -> Any:
    """Replace each array of a tree, or each object of another kind."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {k: map_tree(change, v, kind) for k, v in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, list | tuple):
        items = [map_tree(change, v, kind) for v in cast("list[Any]", tree)]
        return items if isinstance(tree, list) else _like(cast("Any", tree), items)
    return tree


def _like(model: Any, items: list[Any]) -> Any:
    """Make a tuple of the model's class, which may be a named tuple."""
    return type(model)(*items) if hasattr(model, "_fields") else tuple(items)


def form(tree: Any) -> Any:
    """Return a hashable key of a tree, equal for trees that differ only in their arrays' values.

    Raises
    ------
    TypeError
        Something in the tree is neither an array nor hashable.
    """
    if isinstance(tree, ArrayBase):
        return (ArrayBase, tree.shape, tree.dtype)
    if isinstance(tree, dict):
        return (dict, tuple((k, form(v)) for k, v in cast("dict[Any, Any]", tree).items()))
    if isinstance(tree, list | tuple):
        return (type(tree), tuple(form(v) for v in cast("list[Any]", tree)))  # pyright: ignore[reportUnknownArgumentType]
    # Raises TypeError, which names the type.
    hash(tree)
    # 1, 1.0 and True are equal keys, so the type is added. 0.0 and -0.0 are equal too, and NaN is
    # not equal to itself: their texts are the keys.
    return (type(tree), repr(tree) if isinstance(tree, float | complex) else tree)


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

    Operands of the arrays are freed as soon as they are not needed any more.
    """
    wanted = {id(a) for a in leaves(trees)}
    for array in live_arrays():
        if not array.kept and id(array) not in wanted:
            array.free()
    # Last, so that intermediates which are no longer held need not be kept.
    eval(*trees)


def free(*trees: Any) -> None:
    """Free arrays at once; using them is an error then."""
    for array in leaves(trees):
        array.free()


def live_arrays() -> list[Array]:
    """Return the arrays of the default device that Python holds, the largest first."""
    found = [cast("Array", a) for a in devices.session().holders()]
    return sorted(found, key=lambda a: -a.nbytes)


def debug_arrays(top: int = 20) -> str:
    """Return a table of the largest live arrays of the default device."""
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
    """Return the bytes of computed or uploaded arrays of the default device."""
    return devices.session().active_nbytes


def get_peak_memory() -> int:
    """Return the most bytes in use at once, temporary results included."""
    return devices.session().peak_nbytes


def reset_peak_memory() -> None:
    """Count the peak from now on."""
    session = devices.session()
    session.peak_nbytes = session.active_nbytes


def get_cache_memory() -> int:
    """Return the freed bytes that are kept for reuse."""
    return devices.session().executor.cached_nbytes()


def clear_cache() -> None:
    """Give memory that is kept for reuse back to the device."""
    devices.session().executor.cached_nbytes(0)


def set_cache_limit(nbytes: int) -> None:
    """Keep at most `nbytes` bytes for reuse from now on."""
    executor = devices.session().executor
    if nbytes < 0:
        raise OptionError(f"set_cache_limit: {nbytes} bytes, needs at least 0")
    if isinstance(executor, WgpuExecutor):
        executor.device.keep_for_reuse(nbytes)


def set_memory_limit(nbytes: int | None) -> int | None:
    """Limit the bytes in use; arrays beyond it raise OutOfMemory. None lifts the limit.

    Returns
    -------
    int or None
        The limit before.
    """
    session = devices.session()
    before, session.limit_nbytes = session.limit_nbytes, nbytes
    return before


def get_memory_limit() -> int | None:
    """Return the limit of bytes in use, or None."""
    return devices.session().limit_nbytes


def synchronize(stream: Stream | None = None) -> None:
    """Wait until the device has finished all work."""
    (stream.session if stream else devices.session()).wait()


@dataclass(frozen=True, slots=True)
class Stream:
    """An order in which work is done.

    WebGPU has one queue a device, so all streams of a device are that one: work runs in the order
    in which it is handed over, whatever stream it names.
    """

    session: Session


def new_stream(device: object = None) -> Stream:
    """Return a stream of a device."""
    return Stream(devices.on(device))


def default_stream(device: object = None) -> Stream:
    """Return the stream of a device's work."""
    return Stream(devices.on(device))


@contextmanager
def stream(where: Stream | str) -> Generator[None]:
    """Make new arrays on the device of a stream, or on a device by name, inside the block."""
    session = where.session if isinstance(where, Stream) else devices.session(where)
    with devices.preferring(session):
        yield
