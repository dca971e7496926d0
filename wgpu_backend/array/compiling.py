"""Functions that are traced once for each shape, and replayed as a program of the device.

A trace runs the function with stand-ins for its arguments, fuses the graph, and records it. A call
copies arguments into their places on the device, replays, and copies results out: no code of the
function runs. An argument that is the same as before stays where it is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from wgpu_backend.array.base import wrap
from wgpu_backend.array.evaluation import form, leaves, map_tree
from wgpu_backend.array.session import Session, is_done
from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ContextError
from wgpu_backend.graph.node import Node, Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.shape.copying import contiguous

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

P = ParamSpec("P")
R = TypeVar("R")
# A list, since functions change the value.
_enabled = [True]


def enable_compile() -> None:
    """Let compiled functions replay, which is the default."""
    _enabled[0] = True


def disable_compile() -> None:
    """Let compiled functions run their Python code at every call, for debugging."""
    _enabled[0] = False


class Compiled(Generic[P, R]):
    """A compiled function, which replays recorded traces; see `compile`."""

    def __init__(
        self, function: Callable[P, R], inputs: Any, outputs: Any, *, exact: bool = True
    ) -> None:
        self._function: Callable[..., Any] = function
        self._inputs, self._outputs, self._exact = inputs, outputs, exact
        self._traces: dict[Any, Trace] = {}
        # Threads share the function and its containers. A compiled function may call itself.
        self._lock = threading.RLock()
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Replay the function; trace it first if arguments of this form are new.

        Raises
        ------
        TypeError
            An argument is neither an array, nor a tree of arrays, nor hashable.
        """
        if not _enabled[0]:
            return cast("R", self._function(*args, **kwargs))
        with self._lock:
            return cast("R", self._replay(args, kwargs))

    def _replay(self, args: Any, kwargs: Any) -> Any:
        arguments = [args, kwargs, self._inputs]
        given = list(leaves(arguments))
        sessions = {id(a.session): a.session for a in given}
        if len(sessions) > 1:
            raise ContextError(
                "compile: arguments are on several devices, needs one; use to_device"
            )
        # Called by a function that is being traced, it becomes a part of that trace.
        if any(a.session.is_traced(a.node) for a in given):
            return self._function(*args, **kwargs)
        # The session is part of the key: a trace holds memory of one device.
        key = (form(arguments), *sessions)
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._trace(arguments, given, list(sessions.values()))
        result, state = trace.run([a.node for a in given])
        _assign(self._outputs, state)
        return result

    def _trace(self, arguments: Any, given: list[Array], sessions: list[Session]) -> Trace:
        from wgpu_backend.array import devices

        session = sessions[0] if sessions else devices.session()
        return Trace(session, arguments, given, self._body, exact=self._exact)

    def _body(self, arguments: Any) -> Any:
        """Call the function with placeholders; return its results and the new states."""
        args, kwargs, inputs = arguments
        # Copies of the containers: stand-ins must not stay in the user's own after the trace.
        before = map_tree(lambda a: a, self._inputs), map_tree(lambda a: a, self._outputs)
        _assign(self._inputs, inputs)
        try:
            result = self._function(*args, **kwargs)
            return result, map_tree(lambda a: a, self._outputs)
        finally:
            _assign(self._inputs, before[0])
            _assign(self._outputs, before[1])

    def clear(self) -> None:
        """Forget all traces, and give their memory back."""
        for trace in self._traces.values():
            trace.close()
        self._traces.clear()


class Trace:
    """A function recorded for arguments of one form.

    Parameters
    ----------
    given : list of Array
        The arrays in it.
    body : callable
        Gives a tree of results for such a tree.
    exact : bool
        See `compile`.
    """

    def __init__(
        self,
        session: Session,
        arguments: Any,
        given: list[Array],
        body: Callable[[Any], Any],
        *,
        exact: bool = True,
    ) -> None:
        self._session = session
        # Nodes are numbered as they are made: smaller numbers than this one are from outside.
        start = Node(Spec((), F32, ()), Storage(0, "input")).sequence
        self._places = [session.place(Spec.dense(a.shape, a.dtype), "argument") for a in given]
        # The storage and spec of the argument that lies in each place.
        # Weak references: a trace must not keep its last arguments alive.
        self._filled: list[tuple[weakref.ref[Storage], Spec] | None] = [None] * len(given)
        stand_ins = iter([wrap(place) for place in self._places])
        storages = {place.storage for place in self._places}
        session.trace_arguments |= storages
        try:
            self._tree = body(map_tree(lambda _: next(stand_ins), arguments))
        finally:
            session.trace_arguments -= storages
        self._outputs = [_as_output(a.node) for a in leaves(self._tree)]
        self._compute_captured(start)
        executor = session.executor if exact else session.rounding
        self._recorded = executor.record(self._outputs, shared=False, read=False)
        # The recorded graph has the nodes of results; arrays here would count as held by Python.
        self._tree = map_tree(lambda _: _Result(), self._tree)

    def _compute_captured(self, start: int) -> None:
        """Compute arrays from outside the function once: they are constants of the trace."""
        outside = [n for n in schedule(self._outputs) if n.sequence < start]
        self._session.evaluate(outside)

    @uninterrupted
    def run(self, given: Sequence[Node]) -> Any:
        """Replay the trace on these arguments, and return its results as the function's tree."""
        session = self._session
        with session.lock:
            made = [session.place(n.spec, "result") for n in self._outputs]
            after = [p for p in zip(self._outputs, made, strict=True) if p[0].spec.size]
            before, news = self._fill(given)
            self._recorded.replay_between(before, after)
            # Only now: if the replay fails, the places count as empty.
            for i in news:
                self._filled[i] = weakref.ref(given[i].storage), given[i].spec
        results = iter(made)
        return map_tree(lambda _: wrap(next(results)), self._tree, _Result)

    def _fill(self, given: Sequence[Node]) -> tuple[list[tuple[Node, Node]], list[int]]:
        """Return the copies of arguments to the graph's inputs, and which arguments are new."""
        session = self._session
        news = [i for i, node in enumerate(given) if node.spec.size and not self._is_there(i, node)]
        whole = {i: _whole(given[i]) for i in news}
        session.evaluate(whole.values())
        # The old contents go, and the new ones are not there before the replay.
        for i in news:
            self._filled[i] = None
        pairs: list[tuple[Node, Node]] = []
        for i, node in whole.items():
            # A constant has its bytes on the host, and no buffer to copy from.
            if node.storage.kind == "input":
                session.executor.write(self._places[i], node.storage.handle)
            else:
                pairs.append((node, self._places[i]))
        return pairs, news

    def _is_there(self, index: int, node: Node) -> bool:
        filled = self._filled[index]
        if filled is None:
            return False
        storage, spec = filled
        # Values of an array never change, so the same storage and spec have the same values.
        return storage() is node.storage and spec == node.spec and is_done(node)

    def close(self) -> None:
        """Give memory back."""
        self._recorded.close()


class _Result:
    """A placeholder for a result in a tree."""


def _assign(container: Any, values: Any) -> None:
    """Copy the arrays of a tree into another tree of the same structure."""
    if container is None:
        return
    if isinstance(container, dict):
        own = cast("dict[Any, Any]", container)
        own.update({k: _assign_item(own.get(k), v) for k, v in values.items()})
    elif isinstance(container, list):
        own_list = cast("list[Any]", container)
        padded = [*own_list, *[None] * (len(values) - len(own_list))]
        own_list[:] = [_assign_item(o, v) for o, v in zip(padded, values, strict=False)]


def _assign_item(own: Any, value: Any) -> Any:
    if isinstance(own, dict | list) and type(own) is type(value):  # pyright: ignore[reportUnknownArgumentType]
        _assign(own, value)
        return own  # pyright: ignore[reportUnknownVariableType]
    return value


def _whole(node: Node) -> Node:
    """Return a node that covers its whole storage, copied if necessary."""
    spec = node.spec
    is_all = spec.is_dense and spec.offset == 0 and node.storage.nbytes == spec.nbytes
    # A weight may be stored in another layout than its plain bytes.
    return node if is_all and node.storage.kind != "weight" else contiguous(node)


def _as_output(node: Node) -> Node:
    """Return `_whole` of a node that the graph computes; a copy of any other node."""
    # An output that the function was given is copied, as its storage belongs to another array.
    return _whole(node) if node.storage.kind == "intermediate" else contiguous(node)


def compile(
    function: Callable[P, R],
    inputs: Any = None,
    outputs: Any = None,
    shapeless: bool = False,
    *,
    exact: bool = True,
) -> Compiled[P, R]:
    """Return a function that is traced once for arguments of a form, then replayed.

    Arrays that the function finds outside its arguments are constants of the trace, as are numbers
    and strings among the arguments: others make another trace.

    Parameters
    ----------
    function : callable
        Of arrays and trees of them; it has no effects but on `outputs`.
    inputs, outputs : list or dict, or None
        Containers of arrays that the function reads, and that it changes.
    shapeless : bool
        Taken for compatibility: each shape has a trace of its own.
    exact : bool
        Without, a GPU may round operands of products, convolutions and attention to f16, with sums
        in f32 or in groups of 32 values.

    Returns
    -------
    callable
    """
    return Compiled(function, inputs, outputs, exact=exact)
