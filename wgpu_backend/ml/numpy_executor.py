"""The NumPy executor: the device of last resort, and the reference of the tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from wgpu_backend.device.interrupts import deliver
from wgpu_backend.dtypes import BF16, F16, F32, DType, bf16_to_f32, f32_to_bf16
from wgpu_backend.errors import BackendError, ContextError, OutOfMemory
from wgpu_backend.files.quantize import round_to_blocks
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
from wgpu_backend.graph.fusion import Rule, fuse_nodes
from wgpu_backend.graph.memory import MemoryPlan, plan
from wgpu_backend.graph.node import Call, Launch, Node, Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import runs
from wgpu_backend.ml.executor import (
    Array,
    Cost,
    Pairs,
    Pieces,
    Result,
    estimate_cost,
    join_pieces,
    lasting_nodes,
    require_ended,
    require_turns,
    require_under_way,
    sum_by_name,
    write_inputs,
)
from wgpu_backend.ops.host_values import apply_strides, decode, dequantise
from wgpu_backend.ops.layouts.planes import nonfinite_blocks, require_finite
from wgpu_backend.ops.reference import get_reference, wants_f16

Fuse = Callable[[Sequence[Node], Sequence[Node]], Sequence[Node]]

NUMPY_DEVICE = DeviceInfo(id="cpu", name="NumPy", kind="cpu", api="NumPy")


class NumpyExecutor:
    """An executor on the host, with weights dequantised to f32.

    Parameters
    ----------
    capabilities : Capabilities or None
        Of the device whose fusion rules it stands in for; None for its own.

    Attributes
    ----------
    rules : mapping of str to sequence of Rule
        Fusion rules for graphs recorded from now on. None by default; `benchmarks/quality.py` sets
        them to measure their effect on results.
    """

    info = NUMPY_DEVICE

    def __init__(self, capabilities: Capabilities | None = None) -> None:
        # Rules may depend on the device: without one, none that only hardware has.
        self.capabilities = capabilities or Capabilities(software=True)
        self.rules: Mapping[str, Sequence[Rule]] = {}
        # Weak, so that a storage is freed with its last other reference, and its array with it.
        self._owners: WeakKeyDictionary[Storage, str] = WeakKeyDictionary()

    def weight(self, spec: Spec, data: Pieces, label: str, *, alone: bool = False) -> Storage:
        """Store a weight as f32; ModelError if one of its scales is NaN or infinite."""
        data = join_pieces(data)
        blocks = np.frombuffer(data, np.uint8).reshape(-1, spec.dtype.block_nbytes)
        require_finite(label, nonfinite_blocks(spec.dtype, blocks), len(blocks))
        values = dequantise(spec.dtype, data, spec)
        storage = Storage(values.nbytes, "weight", label, values)
        self._owners[storage] = "weights"
        return storage

    def state(self, spec: Spec, label: str, *, zeroed: bool = True) -> Storage:
        """Return zeroed storage that outlives graphs."""
        try:
            values = np.zeros(spec.size, _storage_dtype(spec.dtype).numpy)
        except MemoryError as error:
            raise OutOfMemory(f"{label}: {error}", self.memory_report()) from None
        storage = Storage(values.nbytes, "state", label, values)
        self._owners[storage] = "cache"
        return storage

    def free(self, storage: Storage) -> None:
        """Release the bytes of a state, or of an `alone` weight; calling it again is harmless."""
        self._owners.pop(storage, None)
        storage.handle = None

    def record(
        self,
        outputs: Sequence[Node],
        *,
        shared: bool = True,
        times: int = 1,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> NumpyRecorded:
        """Record a graph for running; intermediates live only while it runs."""
        fuse = self._fuse if self.rules else None
        return NumpyRecorded(outputs, times, fuse, read=read, unread=unread)

    def record_pausable(self, outputs: Sequence[Node], *, at_once: bool = True) -> NumpyPausable:
        """Record a graph whose runs other graphs may interrupt."""
        return NumpyPausable(self.record(outputs))

    def copy(self, pairs: Pairs) -> None:
        """Copy dense tensors of whole storages, each into one of the same size."""
        _copy(pairs)

    def drop(self, handle: object) -> None:
        """Do nothing: an array is freed with its last reference."""

    def cached_nbytes(self, keep: int | None = None) -> int:
        """Return 0: released memory is not kept."""
        return 0

    def _fuse(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> Sequence[Node]:
        return fuse_nodes(nodes, outputs, self.rules, self.capabilities, _intermediate, runs)

    def read(self, node: Node) -> Array:
        """Return the values of a computed node or a weight."""
        if node.storage.handle is None:
            raise ContextError(f"read: {node.spec.shape} {node.spec.dtype} has not been computed")
        return get_values(node).copy() if node.spec.dtype != F16 else view_stored(node).copy()

    def write(self, node: Node, data: bytes) -> None:
        """Write bytes into a dense state."""
        assert node.spec.dtype.numpy is not None
        values = np.frombuffer(data, node.spec.dtype.numpy)
        view_stored(node)[...] = values.reshape(node.spec.shape)

    def cache_nbytes(self) -> dict[str, int]:
        """Return the bytes of states, by label."""
        states = (s for s, owner in self._owners.items() if owner == "cache")
        return sum_by_name((storage.label, storage.nbytes) for storage in states)

    def graph_nbytes(self) -> int:
        """Return 0: intermediates live only while a graph runs."""
        return 0

    def memory_report(self) -> str:
        """Return the use of memory, as a table."""
        return "\n".join(f"{name:12} {n / 2**20:10.1f} MiB" for name, n in self._nbytes.items())

    @property
    def _nbytes(self) -> dict[str, int]:
        held = sum_by_name((owner, storage.nbytes) for storage, owner in self._owners.items())
        return {name: held.get(name, 0) for name in ("weights", "cache")}

    def close(self) -> None:
        """Forget the owners; arrays are freed with their last reference."""
        self._owners.clear()


def _copy(pairs: Pairs) -> None:
    for source, target in pairs:
        view_stored(target)[...] = view_stored(source)


def _intermediate(spec: Spec) -> Storage:
    return Storage(spec.nbytes, "intermediate")


def view_stored(node: Node) -> Array:
    """Return a view of a node's values as they are stored."""
    handle = node.storage.handle
    if isinstance(handle, bytes):
        handle = np.frombuffer(handle, node.spec.dtype.numpy)
    kind = node.spec.dtype.numpy
    if kind not in (None, handle.dtype) and node.storage.kind != "weight":
        handle = _bits_as(handle, kind)
    return apply_strides(handle.reshape(-1), node.spec)


def _bits_as(handle: Array, kind: np.dtype[np.generic]) -> Array:
    """Reinterpret values as another type, as bit views do; bytes left over are dropped."""
    raw = handle.reshape(-1).view(np.uint8)
    return raw[: raw.size // kind.itemsize * kind.itemsize].view(kind)


def get_values(node: Node, *, keep_f16: bool = False) -> Array:
    """Return a node's values as references take them: bf16 as f32, f16 too unless `keep_f16`."""
    values = view_stored(node)
    if node.storage.kind == "weight":
        return values
    if node.spec.dtype == BF16:
        return bf16_to_f32(values)
    widen = node.spec.dtype == F16 and not keep_f16
    return values.astype(np.float32) if widen else values


def _argument(argument: Any, launch: Launch, keep_f16: bool) -> Any:  # noqa: ANN401
    into = launch.into
    if not isinstance(argument, Node):
        return argument
    written = argument is into or any(argument is launch.operands[n] for n in launch.writes)
    # An operand that the op writes in addition to its result.
    if argument.storage.handle is None and written:
        argument.storage.handle = np.zeros(argument.spec.size, argument.spec.dtype.numpy)
    # It was not computed, since only its shape and type matter.
    if argument.storage.handle is None:
        return np.zeros(argument.spec.shape, _reference_dtype(argument.spec.dtype))
    if written and argument.spec.dtype != BF16:
        return view_stored(argument)
    # References write values; a device rounds rows to the format of the cache as it stores them.
    if into is not None and into.spec.dtype.quantised and argument is launch.operands.get("x"):
        return round_to_blocks(into.spec.dtype, get_values(argument))
    return get_values(argument, keep_f16=keep_f16)


def _reference_dtype(dtype: DType) -> np.dtype[np.generic] | None:
    """Return the type in which references get values, see `get_values`."""
    return F32.numpy if dtype in (F16, BF16) or dtype.quantised else dtype.numpy


def _storage_dtype(dtype: DType) -> DType:
    """Return the type in which values are stored: f32 for blocks, rounded to their format."""
    return F32 if dtype.quantised else dtype


def execute(node: Node, launch: Launch, call: Call) -> None:
    """Run one op's NumPy reference and store its result."""
    reference = get_reference(call.op.name)
    keep_f16 = wants_f16(call.op.name)
    args = [_argument(a, launch, keep_f16) for a in call.args]
    kwargs = {name: _argument(a, launch, keep_f16) for name, a in call.kwargs.items()}
    # Overflow to inf and its consequences are what a GPU does too.
    with np.errstate(all="ignore"):
        try:
            result = reference(*args, **kwargs)
        except MemoryError as error:
            raise OutOfMemory(f"{call.op.name}: {error}") from None
    if launch.into is None and np.shape(result) != launch.out.shape:
        raise BackendError(
            f"{call.op.name}: its reference gives shape {np.shape(result)}, needs "
            f"{launch.out.shape}"
        )
    if launch.into is None:
        node.storage.handle = _narrow(result, launch.out)
    # The reference wrote into a copy in f32.
    elif launch.into.spec.dtype == BF16:
        view_stored(launch.into)[...] = f32_to_bf16(result)


def _narrow(result: Array, out: Spec) -> Array:
    if out.dtype.quantised:
        return round_to_blocks(out.dtype, result.astype(np.float32)).reshape(-1)
    with np.errstate(over="ignore"):
        flat = f32_to_bf16(result) if out.dtype == BF16 else result.astype(out.dtype.numpy)
    return np.ascontiguousarray(flat).reshape(-1)


@dataclass(frozen=True, slots=True)
class NumpyResult:
    """The outputs of a run, which are computed already."""

    arrays: list[Array]

    def wait(self) -> list[Array]:
        """Return the outputs in the order they were recorded."""
        return self.arrays


class NumpyRecorded:
    """A schedule, run node by node.

    Parameters
    ----------
    times : int
        How often one submit may run it.
    fuse : callable or None
        Makes fewer nodes of those that are scheduled.
    read : bool
        Runs give the values of the outputs.
    unread : sequence of Node
        Nodes to compute besides, whose values runs do not give.
    """

    dispatches = 0

    def __init__(
        self,
        outputs: Sequence[Node],
        times: int = 1,
        fuse: Fuse | None = None,
        *,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> None:
        self.scheduled: Sequence[Node] = schedule([*outputs, *unread])
        self._read = tuple(outputs) if read else ()
        outputs = lasting_nodes(outputs, unread)
        nodes = fuse(self.scheduled, outputs) if fuse else self.scheduled
        # References return new arrays, so slots would not save memory.
        self.plan: MemoryPlan = plan(nodes, outputs, reuse=False)
        self._outputs = tuple(outputs)
        nodes = [n for _, launch in self.plan.steps for n in launch.operands.values()]
        self._inputs = {
            n.storage.label: n.storage
            for n in [*nodes, *outputs]
            if n.storage.kind == "input" and n.storage.label
        }
        self._specs: dict[str, Spec] = {name: s.handle for name, s in self._inputs.items()}
        self.turns: list[dict[str, Array]] = [
            {name: np.zeros(spec.shape, spec.dtype.numpy) for name, spec in self._specs.items()}
            for _ in range(times)
        ]
        self._last = self._last_uses()

    @property
    def arrays(self) -> dict[str, Array]:
        """The values of the named inputs for `replay`."""
        return self.turns[0]

    def _last_uses(self) -> dict[int, list[Storage]]:
        """Return the storages that are not needed after each step."""
        last: dict[Storage, int] = {}
        for step, (node, launch) in enumerate(self.plan.steps):
            for storage in [node.storage, *(o.storage for o in launch.operands.values())]:
                last[storage] = step
        kept = {n.storage for n in self._outputs}
        ends: dict[int, list[Storage]] = {}
        for storage, step in last.items():
            if storage.kind == "intermediate" and storage not in kept:
                ends.setdefault(step, []).append(storage)
        return ends

    def run(self, inputs: Mapping[str, Array]) -> NumpyResult:
        """Run with the named inputs."""
        write_inputs(self.arrays, inputs)
        return self.replay()

    def replay(self) -> NumpyResult:
        """Run with the current values of `arrays`."""
        return NumpyResult(self._run(self.arrays))

    def replays(self, count: int) -> list[Result]:
        """Run `count` times, with the inputs in `turns[0]`, `turns[1]`, …."""
        require_turns(self.turns, count)
        return [NumpyResult(self._run(arrays)) for arrays in self.turns[:count]]

    def timed(self) -> list[tuple[str, str, float]]:
        """Run with the current values of `arrays` and time each op."""
        timings: list[tuple[str, str, float]] = []
        start = time.perf_counter()

        def done(call: Call) -> None:
            nonlocal start
            now = time.perf_counter()
            timings.append((call.op.name, "numpy", now - start))
            start = now

        self._run(self.arrays, done)
        return timings

    def _run(
        self, arrays: Mapping[str, Array], done: Callable[[Call], None] = lambda call: None
    ) -> list[Array]:
        """Return the values of the outputs; `done` is called with each op after it ran."""
        with self.given(arrays):
            self.execute(0, len(self.plan.steps), done)
            return self.outputs()

    @contextmanager
    def given(self, arrays: Mapping[str, Array]) -> Generator[None]:
        """Set the named inputs to these values until the block ends."""
        try:
            for name, values in arrays.items():
                self._inputs[name].handle = values.reshape(-1)
            yield
        finally:
            for name, storage in self._inputs.items():
                # A named input keeps its spec there between runs.
                storage.handle = self._specs[name]

    def outputs(self) -> list[Array]:
        """Return the values of the outputs."""
        return [
            decode(view_stored(n).tobytes(), Spec.dense(n.spec.shape, _storage_dtype(n.spec.dtype)))
            for n in self._read
        ]

    def execute(
        self, first: int, stop: int, done: Callable[[Call], None] = lambda call: None
    ) -> None:
        """Run some of the ops."""
        for step, (node, launch) in enumerate(self.plan.steps[first:stop], first):
            assert node.call is not None
            deliver()
            execute(node, launch, node.call)
            done(node.call)
            for storage in self._last.get(step, ()):
                storage.handle = None

    def keep(self, storages: Sequence[Storage]) -> None:
        """Turn these storages into states that outlive the run, then close it."""
        for storage in storages:
            storage.kind = "state"
        self.close()

    def replay_between(self, before: Pairs, after: Pairs) -> None:
        """Copy tensors, run, and copy outputs."""
        _copy(before)
        self.replay()
        _copy(after)

    def close(self) -> None:
        """Drop the values of intermediates."""
        for node, _ in self.plan.steps:
            if node.storage.kind == "intermediate":
                node.storage.handle = None


class NumpyPausable:
    """A schedule whose runs other graphs may interrupt, since each intermediate has its array.

    Attributes
    ----------
    costs : list of (str, int)
        Op and estimated cost of each node.
    """

    def __init__(self, recorded: NumpyRecorded) -> None:
        self._recorded = recorded
        self.costs: Sequence[Cost] = [
            (node.call.op.name if node.call else "", estimate_cost(launch))
            for node, launch in recorded.plan.steps
        ]
        self._run: NumpyPausableRun | None = None

    def prepare(self, seconds: float) -> bool:
        """Return true: it is always ready."""
        return True

    def begin(self, inputs: Mapping[str, Array]) -> NumpyPausableRun:
        """Begin a run with these named inputs; it ends the one before."""
        if self._run is not None:
            self._run.close()
        write_inputs(self._recorded.arrays, inputs)
        self._run = NumpyPausableRun(self._recorded)
        return self._run

    def close(self) -> None:
        """Drop the values of intermediates."""
        self._recorded.close()


class NumpyPausableRun:
    """A run of a `NumpyPausable`.

    Attributes
    ----------
    done : int
        Nodes that ran.
    """

    def __init__(self, recorded: NumpyRecorded) -> None:
        self.done = 0
        self._recorded: NumpyRecorded | None = recorded
        self._count = len(recorded.plan.steps)
        self._outputs: list[Array] = []

    def advance(self, count: int) -> NumpyPausableRun:
        """Run the next nodes."""
        recorded = require_under_way(self._recorded)
        first, self.done = self.done, self.done + count
        with recorded.given(recorded.arrays):
            recorded.execute(first, self.done)
            if self.done == self._count:
                self._outputs = recorded.outputs()
        return self

    def wait(self) -> None:
        """Do nothing: the nodes have run."""

    def result(self) -> NumpyResult:
        """Return the outputs, once all nodes ran."""
        require_ended(self.done, self._count)
        return NumpyResult(self._outputs)

    def close(self) -> None:
        """Drop the values so far; calling it again is harmless."""
        if self._recorded is not None:
            self._recorded.close()
            self._recorded = None
