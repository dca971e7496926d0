"""The interface of executors: storage, and graphs recorded for replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.files.gguf.file_bytes import Source
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
from wgpu_backend.graph.memory import MemoryPlan
from wgpu_backend.graph.node import Launch, Node, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.host_values import apply_strides, dequantise

Array = NDArray[Any]
Pairs = Sequence[tuple[Node, Node]]
"""Source and target of copies."""
Cost = tuple[str, int]
"""The op and the estimated cost of a dispatch."""
Item = TypeVar("Item")
OPS_PER_BYTE = 16
"""Operations in the time of a byte: about 6 on CPUs, 15 to 60 on GPUs."""
Pieces = memoryview | list[Source]
"""Bytes of a weight: in memory, or pieces to be read one after the other."""


class Result(Protocol):
    """Outputs on their way to the host."""

    def wait(self) -> list[Array]:
        """Return the outputs in the order they were recorded, with their shapes; f16 stays f16."""
        ...


class Recorded(Protocol):
    """A graph that runs again and again without op code.

    Attributes
    ----------
    scheduled : sequence of Node
        What the outputs need, before fusion.
    plan : MemoryPlan
        Of what is left after it.
    dispatches : int
        Dispatches one run encodes; 0 on the NumPy device.
    turns : sequence of mapping of str to ndarray
        Values of the named inputs for each of several `replays`, to be written over; as many as
        the graph was recorded for.
    arrays : mapping of str to ndarray
        Those of the first, which `replay` takes; `run` puts its own there.
    """

    scheduled: Sequence[Node]
    plan: MemoryPlan
    dispatches: int
    turns: list[dict[str, Array]]

    @property
    def arrays(self) -> dict[str, Array]:
        """The values of the named inputs for `replay`."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> Result:
        """Write the named inputs and run; does not wait."""
        ...

    def replay(self) -> Result:
        """Run with the current values of `arrays`; does not wait."""
        ...

    def replays(self, count: int) -> list[Result]:
        """Run `count` times, with the inputs in `turns[0]`, `turns[1]`, …; does not wait."""
        ...

    def timed(self) -> list[tuple[str, str, float]]:
        """Run and time each dispatch: op, shader and seconds."""
        ...

    def keep(self, storages: Sequence[Storage]) -> None:
        """Turn these storages into states that outlive the run, then close it."""
        ...

    def replay_between(self, before: Pairs, after: Pairs) -> None:
        """Copy tensors as `Executor.copy` does, run, and copy outputs; does not wait."""
        ...

    def close(self) -> None:
        """Release the memory of the run."""
        ...


@runtime_checkable
class Sealable(Protocol):
    """A recorded graph whose next replay may be made ready while the host waits."""

    def seal(self) -> bool:
        """Make the next replay ready, which is certain to come; return whether it is."""
        ...


class Submitted(Protocol):
    """A part of a run that was submitted."""

    def wait(self) -> object:
        """Wait until the device has run the graph."""
        ...


class PausableRun(Protocol):
    """A run of a `Pausable` graph, which other graphs may interrupt between two of its parts.

    Attributes
    ----------
    done : int
        Dispatches that were submitted.
    """

    done: int

    def advance(self, count: int) -> Submitted:
        """Submit the next dispatches.

        Raises
        ------
        ContextError
            Another run of a pausable graph of the executor began, and overwrote this one's values.
        """
        ...

    def result(self) -> Result:
        """Return the outputs on their way to the host, once all dispatches were submitted."""
        ...

    def close(self) -> None:
        """Drop the values so far; calling it again is harmless."""
        ...


class Pausable(Protocol):
    """A recorded graph whose intermediates stay while other graphs run."""

    @property
    def costs(self) -> Sequence[Cost]:
        """Op and cost of each dispatch, see `estimate_cost`, once it is ready."""
        ...

    def prepare(self, seconds: float) -> bool:
        """Prepare the graph for about `seconds`; return whether it is ready.

        Kernels are compiled by other threads meanwhile. Calls follow until it returns true;
        `begin` does what is left.
        """
        ...

    def begin(self, inputs: Mapping[str, Array]) -> PausableRun:
        """Begin a run with these named inputs. It ends the executor's earlier pausable run."""
        ...

    def close(self) -> None:
        """Release the memory of the runs."""
        ...


class Executor(Protocol):
    """A holder of tensors' bytes, which runs graphs over them."""

    @property
    def info(self) -> DeviceInfo:
        """The device of the executor."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """The features that kernels may use."""
        ...

    def weight(self, spec: Spec, data: Pieces, label: str, *, alone: bool = False) -> Storage:
        """Return the storage of a weight, filled from its bytes, which may lie in pieces.

        With `alone` it is for `free`, otherwise it stays until the executor closes.
        """
        ...

    def state(self, spec: Spec, label: str, *, zeroed: bool = True) -> Storage:
        """Return storage that outlives graphs; its bytes are zeros, or undefined."""
        ...

    def free(self, storage: Storage) -> None:
        """Release the bytes of a state, or of an `alone` weight; calling it again is harmless."""
        ...

    def record(
        self,
        outputs: Sequence[Node],
        *,
        shared: bool = True,
        times: int = 1,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> Recorded:
        """Record a graph for running, up to `times` times in one submit.

        With `shared`, intermediates lie in memory that all graphs share. Without `read`, runs copy
        nothing to the host: their results are empty, and `keep` is what they are for. Nodes in
        `unread` are computed, too, but never copied to the host.
        """
        ...

    def record_pausable(self, outputs: Sequence[Node], *, at_once: bool = True) -> Pausable:
        """Record a graph whose runs other graphs may interrupt.

        Its intermediates lie in memory that all such graphs share. Without `at_once`, the work is
        left to `Pausable.prepare`.
        """
        ...

    def copy(self, pairs: Pairs) -> None:
        """Copy dense tensors of whole storages on the device, each into one of the same size."""
        ...

    def drop(self, handle: Any) -> None:  # noqa: ANN401
        """Release the bytes of a storage that was collected; never waits."""
        ...

    def cached_nbytes(self, keep: int | None = None) -> int:
        """Return the released bytes kept for reuse, after reducing them to `keep`."""
        ...

    def read(self, node: Node) -> Array:
        """Return the values of a computed node or a weight; block formats as f32."""
        ...

    def write(self, node: Node, data: bytes) -> None:
        """Write bytes into a dense state."""
        ...

    def memory_report(self) -> str:
        """Return the use of memory, as a table."""
        ...

    def cache_nbytes(self) -> dict[str, int]:
        """Return the bytes of states, by label."""
        ...

    def graph_nbytes(self) -> int:
        """Return the bytes of intermediates, inputs and parameters."""
        ...

    def close(self) -> None:
        """Release everything; calling it again is harmless."""
        ...


def estimate_cost(launch: Launch) -> int:
    """Estimate the time of a launch, in operations: of its arithmetic or its transfers."""
    moved = {node.storage: node.spec.nbytes for node in launch.operands.values()}
    return max(launch.work, OPS_PER_BYTE * (launch.out.nbytes + sum(moved.values())), 1)


def require_under_way(run: Item | None) -> Item:
    """Return an attribute that a pausable run has until it is closed; raise if it is None."""
    if run is None:
        raise ContextError("advance: the run was closed, or another pausable run began after it")
    return run


def require_ended(done: int, count: int) -> None:
    """Raise if a pausable run has dispatches left."""
    if done < count:
        raise ContextError(f"result: {done} of {count} dispatches were submitted, needs all")


def lasting_nodes(outputs: Sequence[Node], unread: Sequence[Node]) -> list[Node]:
    """Return the nodes whose values have to be there at the end of a run.

    What a node wrote into a state is there anyway, also where fusion has another node write it.
    """
    return [*outputs, *(node for node in unread if node.storage.kind == "intermediate")]


def join_pieces(data: Pieces) -> memoryview:
    """Return all bytes of a weight, read from the file if they are not in memory."""
    if isinstance(data, memoryview):
        return data
    whole, at = memoryview(bytearray(sum(piece.nbytes for piece in data))), 0
    for piece in data:
        piece.read_into(whole[at : at + piece.nbytes], 0)
        at += piece.nbytes
    return whole.toreadonly()


def weight_values(dtype: DType, data: Pieces, spec: Spec) -> Array:
    """Return the values that `spec` selects from a whole weight's bytes; block formats as f32."""
    whole = join_pieces(data)
    size = len(whole) // dtype.block_nbytes * dtype.block
    return apply_strides(dequantise(dtype, whole, Spec.dense((size,), dtype)), spec).copy()


def sum_by_name(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sum the numbers of each name."""
    total: dict[str, int] = {}
    for name, number in pairs:
        total[name] = total.get(name, 0) + number
    return total


def write_inputs(arrays: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
    """Copy values of all inputs into the arrays of a recorded graph.

    Raises
    ------
    ContextError, ShapeError, DTypeError
        Names or shapes differ from the graph's; the message has both, and nothing was copied.
    """
    if inputs.keys() != arrays.keys():
        raise ContextError(f"run: the graph's inputs are {sorted(arrays)}, got {sorted(inputs)}")
    for name, values in inputs.items():
        # A list does not say which type its values are meant to have.
        if not hasattr(values, "dtype"):
            needs = f"an array of {arrays[name].shape}, {arrays[name].dtype}"
            raise DTypeError(f"input {name}: got a {type(values).__name__}, needs {needs}")
        if values.shape != arrays[name].shape:
            raise ShapeError(f"input {name}: got {values.shape}, needs {arrays[name].shape}")
        if values.dtype != arrays[name].dtype:
            raise DTypeError(f"input {name}: got {values.dtype}, needs {arrays[name].dtype}")
    for name, values in inputs.items():
        arrays[name][...] = values


def require_turns(turns: Sequence[Mapping[str, Array]], count: int) -> None:
    """Refuse more runs in one submit than a graph has inputs for.

    Raises
    ------
    ContextError
        There are fewer turns, or none is wanted.
    """
    if not 1 <= count <= len(turns):
        raise ContextError(f"replays: {count} at once, the graph was recorded for {len(turns)}")


class WholePausable:
    """A graph of a device that only runs graphs whole, in the shape of a `Pausable`.

    Attributes
    ----------
    costs : list of (str, int)
        One entry, for the whole graph.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        launches = [node.launch for node in recorded.scheduled if node.launch is not None]
        self.costs: Sequence[Cost] = [("graph", sum(map(estimate_cost, launches)))]

    def prepare(self, seconds: float) -> bool:
        """Return true: it is always ready."""
        return True

    def begin(self, inputs: Mapping[str, Array]) -> WholeRun:
        """Begin a run with these named inputs."""
        return WholeRun(self._recorded, inputs)

    def close(self) -> None:
        """Release the memory of the runs."""
        self._recorded.close()


class WholeRun:
    """A run of a `WholePausable`.

    Attributes
    ----------
    done : int
        1 once it was submitted, before that 0.
    """

    def __init__(self, recorded: Recorded, inputs: Mapping[str, Array]) -> None:
        self.done = 0
        self._recorded: Recorded | None = recorded
        self._inputs = inputs
        self._result: _Once | None = None

    def advance(self, count: int) -> Submitted:
        """Submit the graph."""
        self._result = _Once(require_under_way(self._recorded).run(self._inputs))
        self.done = count
        return self._result

    def result(self) -> Result:
        """Return the outputs on their way to the host, once the graph was submitted."""
        require_ended(self.done, 1)
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """End the run; calling it again is harmless."""
        self._recorded = None


class _Once:
    """Outputs that are fetched once and kept, so that `wait` can be called again."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._arrays: list[Array] | None = None

    def wait(self) -> list[Array]:
        if self._arrays is None:
            self._arrays = self._result.wait()
        return self._arrays
