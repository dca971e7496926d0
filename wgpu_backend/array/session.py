"""The session of a device: an endless graph of arrays, whose nodes are freed as arrays go.

A session is a builder for ops. An op makes a node and computes nothing. `evaluate` records and runs
the graph that some nodes need, and turns them into leaves. The bytes of a leaf live as long as any
node refers to them. Results that Python still holds are kept too, so nothing is computed twice.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np

from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ContextError, OutOfMemory
from wgpu_backend.graph.node import Call, Launch, Node, Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec, dense_strides
from wgpu_backend.ml.executor import Array, Executor, Recorded
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.layouts.planes import stored_nbytes

# Arrays up to this size travel with the graphs that use them; larger ones get a storage of their
# own, so that a graph does not carry them again each time.
CONSTANT_NBYTES = 256


class Holder(Protocol):
    """An array: it refers to a node from outside the graph."""

    @property
    def node(self) -> Node:
        """The node of the array's values."""
        ...


class Session:
    """Arrays of a device.

    Parameters
    ----------
    executor : Executor
        Closed with the session; its fusion rules are for compiled functions.

    Attributes
    ----------
    executor : Executor
        Runs compiled functions, in f32.
    rounding : Executor
        Runs compiled functions that may round: it has all rules.
    peak_nbytes : int
        Most that was ever in use, temporary results of graphs included.
    limit_nbytes : int or None
        Limit of the bytes in use; None is no limit.
    arrays : weak mapping of int to Holder
        All arrays, by their identity.
    """

    def __init__(self, executor: Executor) -> None:
        self.rounding = executor
        self.executor = _without_rounding(executor)
        self._eager = _without_rules(self.executor)
        self._owned = self.peak_nbytes = 0
        # Finalisers run between any two steps of a thread, also while it holds the lock. They
        # append here, which needs no lock, and `active_nbytes` subtracts later.
        self._freed: deque[int] = deque()
        self.limit_nbytes: int | None = None
        self.arrays: weakref.WeakValueDictionary[int, Holder] = weakref.WeakValueDictionary()
        # Arrays that may still have to be computed: a few of `arrays`, so that `evaluate` need not
        # walk over all.
        self._waiting: weakref.WeakValueDictionary[int, Holder] = weakref.WeakValueDictionary()
        # Reentrant: `evaluate` holds it while `_own` takes it.
        self.lock = threading.RLock()
        # Storages of stand-ins for the arguments of functions that are being traced.
        self.trace_arguments: set[Storage] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"Session({self.executor.info.id}, {self.executor.info.name})"

    def enter(self, array: Holder) -> None:
        """Note an array that has a new node."""
        self.arrays[id(array)] = array
        if not is_done(array.node):
            self._waiting[id(array)] = array

    def holders(self) -> list[Holder]:
        """Return all arrays that Python holds."""
        return _list_alive(self.arrays)

    def leave(self, array: Holder) -> None:
        """Forget an array that was freed."""
        self.arrays.pop(id(array), None)
        self._waiting.pop(id(array), None)

    # The interface for ops: see `wgpu_backend.graph.node.Builder`.

    def add(self, call: Call, launch: Launch) -> Node:
        """Return a node for the result of an op."""
        # The op writes into an operand, a cache for example: both share one storage.
        if launch.into is not None:
            return Node(launch.out, launch.into.storage, builder=self, call=call, launch=launch)
        storage = Storage(stored_nbytes(launch.out), "intermediate")
        return Node(launch.out, storage, builder=self, call=call, launch=launch)

    def view(self, source: Node, spec: Spec) -> Node:
        """Return a node that views the storage of another."""
        # A view of a view refers to the first node: long chains of views keep no chain of nodes.
        base = source.source if source.launch is None and source.source else source
        return Node(spec, source.storage, builder=self, source=base)

    def constant(self, data: bytes, dtype: DType, shape: Sequence[int]) -> Node:
        """Return a node with known values: a few bytes go into graphs, more are uploaded."""
        spec = Spec(tuple(shape), dtype, dense_strides(shape))
        if len(data) > CONSTANT_NBYTES:
            return self.upload(data, spec)
        return Node(spec, Storage(spec.nbytes, "input", "", data), builder=self)

    @uninterrupted
    def upload(self, data: Any, spec: Spec) -> Node:
        """Return a node with bytes of a plain type, uploaded at once."""
        node = self.place(spec, "array")
        if spec.size:
            self.executor.write(node, data)
        return node

    @uninterrupted
    def place(self, spec: Spec, label: str) -> Node:
        """Return a node with new storage, which is written before it is read."""
        # Checked before the device allocates, so that a refused array takes no memory.
        self._require(spec.nbytes)
        storage = self.executor.state(spec, label, zeroed=False)
        self._own(storage)
        return Node(spec, storage, builder=self)

    @uninterrupted
    def weight(self, data: memoryview, spec: Spec, label: str) -> Node:
        """Return a node with the bytes of a weight in any format, stored as weights are."""
        self._require(spec.nbytes)
        # `alone`: other weights stay until the executor closes, but an array may go at any time.
        storage = self.executor.weight(spec, data, label, alone=True)
        self._own(storage)
        return Node(spec, storage, builder=self)

    # Computing.

    @uninterrupted
    def evaluate(self, nodes: Iterable[Node]) -> None:
        """Compute nodes, and hand the work to the device without waiting for it.

        Nodes that depend on arguments of a function that is being traced stay as they are: each
        call of the function computes them.

        Raises
        ------
        OutOfMemory
            The memory limit or the device does not allow it; nothing was computed.
        """
        with self.lock:
            wanted = [node for node in nodes if not is_done(node) and not self.is_traced(node)]
            if not wanted:
                return
            scheduled = {node.storage for node in schedule(wanted)}
            # Other arrays that this graph computes on the way are kept. Otherwise a later
            # evaluation would compute them again.
            also = [n for n in self._list_pending() if n.storage in scheduled]
            self._compute([*wanted, *also])

    def _list_pending(self) -> list[Node]:
        """Return the nodes of arrays that have not been computed; forget the others."""
        held: list[Node] = []
        for holder in _list_alive(self._waiting):
            node = _pending_node(holder)
            if node is not None:
                held.append(node)
                continue
            self._waiting.pop(id(holder), None)
            # Another thread may have assigned a new node between the two steps.
            if _pending_node(holder) is not None:
                self._waiting[id(holder)] = holder
        return held

    def _compute(self, outputs: Sequence[Node]) -> None:
        # Not `shared`, as outputs outlive the graph. Not `read`, as values stay on the device.
        recorded = self._eager.record(outputs, shared=False, read=False)
        try:
            self._require(recorded.plan.peak_nbytes)
            recorded.run({})
            self._keep(outputs, recorded)
        # Also on Ctrl-C: a recording holds device memory.
        except BaseException:
            recorded.close()
            raise

    def _keep(self, outputs: Sequence[Node], recorded: Recorded) -> None:
        """Turn computed nodes into leaves."""
        self.peak_nbytes = max(self.peak_nbytes, self.active_nbytes + recorded.plan.peak_nbytes)
        kept = {n.storage: None for n in outputs if n.storage.kind == "intermediate"}
        recorded.keep(list(kept))
        for node in recorded.scheduled:
            if node.storage in kept:
                # Without a launch the node is a leaf: it lets go of its operands.
                node.launch = node.call = None
        for storage in kept:
            self._own(storage)

    @uninterrupted
    def values(self, node: Node) -> Array:
        """Return values on the host, computed first if necessary."""
        if node.storage.kind == "input":
            return _host(node)
        if self.is_traced(node):
            raise ContextError(
                "compile: the function reads values of its arguments (numpy, item, an index by a "
                "mask, or a function of the host), but a trace has no values; read them outside"
            )
        # `read` copies a whole storage to the host. A small part of a large one is copied out on
        # the device first.
        whole = node.storage.nbytes <= 4 * max(node.spec.nbytes, 64)
        if not whole and not node.spec.dtype.quantised:
            from wgpu_backend.ops.shape.copying import contiguous

            node = contiguous(node)
        self.evaluate([node])
        return self.executor.read(node)

    def is_traced(self, node: Node) -> bool:
        """Return whether a node's values depend on arguments of a function that is being traced."""
        # The walk over the graph costs time, and nothing is being traced as a rule.
        return bool(self.trace_arguments) and not self.trace_arguments.isdisjoint(_needed(node))

    def wait(self) -> None:
        """Wait until the device has finished all work."""
        if isinstance(self.executor, WgpuExecutor):
            self.executor.device.wait()

    # Memory.

    @property
    def active_nbytes(self) -> int:
        """Bytes that have been computed or uploaded and are still in use."""
        with self.lock:
            while self._freed:
                self._owned -= self._freed.popleft()
            return self._owned

    def _own(self, storage: Storage) -> None:
        """Count bytes that are released with the last node that refers to them."""
        with self.lock:
            self._owned += storage.nbytes
            self.peak_nbytes = max(self.peak_nbytes, self.active_nbytes)
        # A weak reference: the finaliser must not keep the session alive.
        gone = weakref.finalize(
            storage, _release, weakref.ref(self), storage.handle, storage.nbytes
        )
        # At exit `close` gives back all memory at once, maybe before this would run.
        gone.atexit = False

    def gone(self, handle: object, nbytes: int) -> None:
        """Release the bytes of a storage; called by finalisers."""
        self._freed.append(nbytes)
        # A closed device has no buffers left to drop.
        if not self._closed:
            self.executor.drop(handle)

    def _require(self, nbytes: int) -> None:
        limit, active = self.limit_nbytes, self.active_nbytes
        if limit is not None and active + nbytes > limit:
            raise OutOfMemory(
                f"arrays: {nbytes} bytes on top of {active} in use, the limit is {limit}; free "
                "arrays, or raise it with set_memory_limit"
            )

    def close(self) -> None:
        """Give back all memory, and the device; calling it again is harmless."""
        if not self._closed:
            self._closed = True
            self.executor.close()


def _needed(node: Node) -> set[Storage]:
    """Return the storages that a node's values come from."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        each = stack.pop()
        if each not in seen:
            seen.add(each)
            stack += each.dependencies()
    return {each.storage for each in seen}


def _release(session: weakref.ref[Session], handle: object, nbytes: int) -> None:
    owner = session()
    if owner is not None:
        owner.gone(handle, nbytes)


def _list_alive(holders: weakref.WeakValueDictionary[int, Holder]) -> list[Holder]:
    """Return the values of a weak mapping while other threads add to it."""
    # `items` raises if another thread adds meanwhile; `valuerefs` copies in one step.
    found = (reference() for reference in holders.valuerefs())
    return [holder for holder in found if holder is not None]


def _pending_node(holder: Holder) -> Node | None:
    """Return the node of an array that is still to be computed; None if it was freed."""
    try:
        node = holder.node
    except ContextError:
        return None
    return None if is_done(node) else node


def is_done(node: Node) -> bool:
    """Return whether the values of a node have been computed, or their work submitted."""
    if node.storage.kind == "input":
        return True
    # A view has no launch: it waits for that of its source.
    waits = node.launch is not None or (node.source is not None and node.source.launch is not None)
    return node.storage.handle is not None and not waits


def _without_rounding(executor: Executor) -> Executor:
    """Return an executor over the same memory without the rules that round to f16."""
    if not isinstance(executor, WgpuExecutor | NumpyExecutor):
        return executor
    rules = {op: [rule for rule in own if rule.exact] for op, own in executor.rules.items()}
    if rules == dict(executor.rules):
        return executor
    exact = copy(executor)
    exact.rules = rules
    return exact


def _without_rules(executor: Executor) -> Executor:
    """Return an executor over the same memory that fuses nothing."""
    if not isinstance(executor, WgpuExecutor):
        return executor
    # A fused chain of ops is a kernel of its own, and eager graphs differ each time: every chain
    # would be compiled anew.
    plain = executor.as_if(executor.capabilities)
    plain.rules = {}
    return plain


def _host(node: Node) -> Array:
    """Return the values of a constant."""
    from wgpu_backend.ops.host_values import decode

    return np.array(decode(node.storage.handle, node.spec))
