"""The executor of a device: weights, states and recorded graphs in its memory.

A plan becomes buffers, pipelines and a Program, once; a recorded graph replays that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer, Texture
from wgpu_backend.device.device import Device
from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.device.memory import Purpose
from wgpu_backend.device.pending import Pending
from wgpu_backend.device.pipelines import Pipeline
from wgpu_backend.device.program import Program, Submitted
from wgpu_backend.device.ring import Given
from wgpu_backend.device.wgsl.module import Access, BindingDecl, Shader
from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ContextError, Unclosed
from wgpu_backend.files.quantize import decode_blocks
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
from wgpu_backend.graph.fusion import FindWrong, Rule, fuse_nodes
from wgpu_backend.graph.memory import SLACK, MemoryPlan, plan
from wgpu_backend.graph.node import Launch, Node, Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import complete, runs, select_layout
from wgpu_backend.ml.executor import (
    Array,
    Cost,
    Pairs,
    Pieces,
    Result,
    estimate_cost,
    lasting_nodes,
    require_ended,
    require_turns,
    require_under_way,
    sum_by_name,
    weight_values,
    write_inputs,
)
from wgpu_backend.ml.placement import HostMemory, Placement
from wgpu_backend.ml.wgpu.dispatch import Kernel, kernels
from wgpu_backend.ml.wgpu.staging import stage
from wgpu_backend.ml.wgpu.storage import (
    CHUNK_NBYTES,
    Part,
    SharedSlots,
    WeightStore,
    find_part,
    intermediate,
    join_blocks,
    plane_reads,
    whole_binding,
    whole_part,
)
from wgpu_backend.ml.wgpu.trust import Trust
from wgpu_backend.ml.wgpu.weight_rows import Rows
from wgpu_backend.ops.host_values import apply_strides, decode, decode_dense
from wgpu_backend.ops.layouts.layout import WeightLayout
from wgpu_backend.ops.layouts.planes import align, plane_nbytes, stored_nbytes
from wgpu_backend.ops.layouts.super_blocks import Bytes

# What a kernel binds: of a storage, one of its parts, a plane of that, and how it is accessed.
Bound = Callable[[Storage, Part, str, Access], Binding]
Slots = Callable[[tuple[int, ...]], list[Buffer]]
# Threads that compile the kernels of a graph while other graphs run.
COMPILERS = 2
# Work of a dispatch of a pausable graph, for which other graphs wait: attention over a picture's
# patches takes longer than a decode step. About 10 ms of a core, and of a slow GPU.
MOST_WORK_OF_SOFTWARE, MOST_WORK = 1 << 25, 1 << 33


@dataclass(frozen=True, slots=True)
class WgpuResult:
    """Outputs on their way to the host."""

    pending: Pending
    specs: tuple[Spec, ...]

    def wait(self) -> list[Array]:
        """Return the outputs in the order they were recorded."""
        data = iter(self.pending.wait())
        return [_values(spec, data) for spec in self.specs]


def _values(spec: Spec, planes: Iterator[bytes]) -> Array:
    """Return the values of an output from the bytes of its planes."""
    if spec.dtype.numpy is not None:
        return decode_dense(next(planes), spec.shape, spec.dtype)
    data = [next(planes) for _ in plane_nbytes(spec.dtype)]
    blocks = join_blocks(spec.dtype, spec.size // spec.dtype.block, data)
    return decode_blocks(spec.dtype, blocks).reshape(spec.shape)


class _Compiler:
    """Kernels that threads of their own compile, before a graph needs them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._under_way: list[Future[Pipeline]] = []

    def begin(self, shaders: Sequence[Shader]) -> None:
        """Begin to compile shaders; errors are left to `Device.pipeline`, which compiles again."""
        pool = ThreadPoolExecutor(COMPILERS, "wgpu_backend compiler")
        # Deeply nested shaders could overflow the small stack of a thread; the package's are not.
        own = {id(shader): shader for shader in shaders if shader.trusted}
        self._under_way = [pool.submit(self._device.pipeline, each) for each in own.values()]
        pool.shutdown(wait=False)

    @property
    def is_done(self) -> bool:
        """Whether all of them were compiled, or failed."""
        return all(each.done() for each in self._under_way)

    def close(self) -> None:
        """Compile no more of them."""
        for each in self._under_way:
            each.cancel()


class WgpuRecorded:
    """A graph as a Program, with its inputs in one buffer and its parameters in another.

    Parameters
    ----------
    capabilities : Capabilities
        By which kernels are chosen.
    rules : mapping of str to sequence of Rule
        Fusion rules that may be used.
    bound : callable
        What a kernel binds of a part of a storage, see `WgpuExecutor.bound`.
    slots : callable or None
        Gives buffers of these sizes for the slots of the plan; None for the graph's own.
    times : int
        How often one submit may run it.
    read : bool
        Runs copy the outputs to the host.
    unread : sequence of Node
        Nodes to compute besides, which are not copied.
    staging : callable or None
        Gives buffers for weights in the host's memory that are copied first, see `staging`; None
        to read all of them there.
    at_once : bool
        Whether the constructor does all the work; otherwise `advance` does it.
    most_work : int
        Of a dispatch, see `kernels`.
    find_wrong : callable or None
        See `fuse_nodes`.

    Attributes
    ----------
    costs : list of (str, int)
        Op and estimated cost of each dispatch.
    """

    def __init__(
        self,
        device: Device,
        capabilities: Capabilities,
        outputs: Sequence[Node],
        rules: Mapping[str, Sequence[Rule]],
        bound: Bound,
        slots: Slots | None,
        times: int = 1,
        *,
        read: bool = True,
        unread: Sequence[Node] = (),
        staging: Slots | None = None,
        at_once: bool = True,
        most_work: int = 0,
        find_wrong: FindWrong | None = None,
    ) -> None:
        self._device = device
        self._find_wrong = find_wrong
        self._most_work = most_work
        self._staging = staging
        self._capabilities = capabilities
        self._bound = bound
        self._read = tuple(outputs) if read else ()
        self._owned: list[Buffer] = []
        self.turns: list[dict[str, Array]] = [{} for _ in range(times)]
        self.costs: list[Cost] = []
        self._parts: dict[Storage, tuple[Part, ...]] = {}
        self._compiler: _Compiler | None = None if at_once else _Compiler(device)
        self._begin: Callable[[], Iterator[bool]] = partial(
            self._make, outputs, unread, rules, slots or self._own_slots
        )
        self._work = self._begin()
        self._whole = False
        if at_once:
            try:
                self.advance()
            except BaseException:
                self._forget_work()
                raise

    def _make(
        self,
        outputs: Sequence[Node],
        unread: Sequence[Node],
        rules: Mapping[str, Sequence[Rule]],
        slots: Slots,
    ) -> Iterator[bool]:
        """Record in small parts; yield after each whether kernels are ready for the next."""
        # The caller may have used up its time by making the graph.
        yield True
        self.scheduled: Sequence[Node] = schedule([*outputs, *unread])
        outputs = lasting_nodes(outputs, unread)
        can = self._capabilities
        nodes = fuse_nodes(
            self.scheduled, outputs, rules, can, intermediate, runs, self._find_wrong
        )
        yield True
        self.plan: MemoryPlan = plan(nodes, outputs)
        self.specs = tuple(n.spec for n in self._read)
        self._place_intermediates(slots)
        given = self._place_inputs(outputs)
        yield True
        yield from self._program(given)

    def advance(self, seconds: float = math.inf) -> bool:
        """Continue the recording for about `seconds`; return whether it is complete.

        It ends earlier where kernels are not compiled yet, which other threads do.
        """
        until = time.perf_counter() + seconds
        self._whole = seconds == math.inf
        try:
            for is_ready in self._work:
                if not is_ready or time.perf_counter() >= until:
                    return False
        except BaseException:
            begin = self._begin
            self._release()
            # For another try, when there may be more memory.
            self._begin, self._work = begin, begin()
            raise
        self._forget_work()
        return True

    def _forget_work(self) -> None:
        """Break reference cycles, so that a dropped object is freed without the collector."""
        self._work = iter(())
        self._begin = partial(iter, ())

    @property
    def arrays(self) -> dict[str, Array]:
        """The values of the named inputs for `replay`."""
        return self.turns[0]

    def _own(self, nbytes: int, purpose: Purpose, label: str) -> Buffer:
        """Make a buffer that `close` releases."""
        self._owned.append(self._device.buffer(nbytes, purpose=purpose, label=label))
        return self._owned[-1]

    def _own_slots(self, sizes: tuple[int, ...]) -> list[Buffer]:
        return [self._own(nbytes, "activations", "slot") for nbytes in sizes]

    def _place_intermediates(self, take: Slots) -> None:
        slots = take(self.plan.slot_nbytes)
        made: dict[Storage, Spec] = {}
        for node, launch in self.plan.steps:
            for operand in (launch.operands[name] for name in launch.writes):
                # A view of a part does not change the spec of the whole.
                made.setdefault(operand.storage, operand.spec)
            if launch.into is None:
                made[node.storage] = launch.out
        for storage, slot in self.plan.slot_of.items():
            self._parts[storage] = (whole_part(made[storage], 1, slots[slot]),)

    def _place_inputs(self, outputs: Sequence[Node]) -> Given | None:
        """Put the inputs into one buffer: named ones first, which a run rewrites with one write."""
        nodes = [n for _, launch in self.plan.steps for n in launch.operands.values()]
        found = {n.storage: n for n in [*nodes, *outputs] if n.storage.kind == "input"}
        # Named ones first: they are one range, which each run writes.
        storages = sorted(found, key=lambda s: s.label == "")
        if not storages:
            return None
        sizes = {s: align(s.nbytes + SLACK) for s in storages}
        named = sum(size for s, size in sizes.items() if s.label)
        values = np.zeros((len(self.turns), named), np.uint8)
        buffer, offset = self._own(sum(sizes.values()), "inputs", "inputs"), 0
        for storage, size in sizes.items():
            self._place_input(storage, Binding(buffer, offset, size), values)
            offset += size
        return (Binding(buffer, 0, named), values.reshape(-1).data) if named else None

    def _place_input(self, storage: Storage, at: Binding, values: Bytes) -> None:
        """Place an input: a named one in the bytes that runs rewrite; a constant is written now."""
        self._parts[storage] = (Part(0, 1, {"": at}),)
        if not storage.label:
            # A constant keeps its values, so they are written once.
            self._device.write(at.buffer, storage.handle, at.offset)
            return
        spec: Spec = storage.handle
        for turn, row in zip(self.turns, values, strict=True):
            # A view: what callers put into it is what a run writes.
            turn[storage.label] = np.ndarray(spec.shape, spec.dtype.numpy, row.data, at.offset)

    def _get_parts(self, node: Node) -> tuple[Part, ...]:
        if node.storage in self._parts:
            return self._parts[node.storage]
        if node.storage.handle is None:
            raise ContextError(f"{node.storage.label or node.spec.shape}: its storage was released")
        return node.storage.handle

    def _program(self, given: Given | None) -> Iterator[bool]:
        """Make the program in small parts, as `_make`."""
        made: list[tuple[Node, Launch, Kernel]] = []
        costs: list[Cost] = []
        for node, launch in self.plan.steps:
            assert node.call is not None
            own = [
                *kernels(node.call.op, launch, self._capabilities, self._get_parts, self._most_work)
            ]
            made += [(node, launch, kernel) for kernel in own]
            # One for each part of a split weight, or of the work groups.
            costs += [(node.call.op.name, estimate_cost(launch) // max(len(own), 1))] * len(own)
            yield True
        if self._compiler is not None:
            self._compiler.begin([kernel.shader for _, _, kernel in made])
            while not (self._whole or self._compiler.is_done):
                yield False
        params = self._upload_params([kernel.params for _, _, kernel in made])
        binder = self._device.make_binder()
        dispatches: list[Dispatch] = []
        for (node, launch, kernel), block in zip(made, params, strict=True):
            dispatches.append(self._dispatch(node, launch, kernel, block))
            yield True
        if self._staging is not None:
            launches = [launch for _, launch, _ in made]
            dispatches = stage(
                self._device, dispatches, launches, self._staging, self._upload_params
            )
        for dispatch in dispatches if self._compiler else ():
            self._device.bind(binder, dispatch)
            yield True
        self.costs, self.dispatches = costs, len(dispatches)
        reads = [read for node in self._read for read in self._readings(node)]
        times = len(self.turns)
        self.program: Program = self._device.program(
            dispatches, reads=reads, given=given, label="graph", times=times, binder=binder
        )

    def _upload_params(self, packed: Sequence[bytes]) -> list[Binding | None]:
        """Upload parameter blocks into one uniform buffer; equal ones share a place."""
        places: dict[bytes, int] = {}
        end = 0
        for block in packed:
            if block and block not in places:
                places[block] = end
                end += align(len(block))
        if not places:
            return [None] * len(packed)
        buffer = self._own(end, "params", "params")
        # Each block starts at the alignment of a uniform binding.
        blocks = (block.ljust(align(len(block)), b"\0") for block in places)
        self._device.write(buffer, b"".join(blocks))
        return [Binding(buffer, places[b], len(b)) if b else None for b in packed]

    def _dispatch(
        self, node: Node, launch: Launch, kernel: Kernel, params: Binding | None
    ) -> Dispatch:
        assert node.call is not None
        bindings: list[Binding] = []
        for decl in kernel.shader.bindings:
            if decl.access == "uniform":
                assert params is not None
                bindings.append(params)
            else:
                bindings.append(self._binding(node, launch, decl, kernel.part))
        return Dispatch(
            self._device.pipeline(kernel.shader),
            tuple(bindings),
            kernel.groups,
            node.call.op.name,
            kernel.work,
        )

    def _binding(self, node: Node, launch: Launch, decl: BindingDecl, index: int) -> Binding:
        """Return the binding of an operand, one of its planes, its texture, or the result."""
        operand, plane = decl.name, ""
        if operand != "y" and operand not in launch.operands:
            # The binding of a plane is named after operand and plane.
            operand, _, plane = operand.rpartition("_")
        target = node if operand == "y" else launch.operands[operand]
        parts, _ = find_part(target, self._get_parts(target))
        # Operands of one part serve every part of a weight.
        part = parts[min(index, len(parts) - 1)]
        return self._bound(target.storage, part, plane, decl.access)

    def _readings(self, node: Node) -> list[Binding]:
        dtype = node.spec.dtype
        blocks = node.spec.nbytes // dtype.block_nbytes
        return plane_reads(dtype, blocks, self._get_parts(node)[0])

    @uninterrupted
    def run(self, inputs: Mapping[str, Array]) -> WgpuResult:
        """Write the named inputs and run; does not wait."""
        write_inputs(self.arrays, inputs)
        return self.replay()

    def replay(self) -> WgpuResult:
        """Run with the current values of `arrays`; does not wait."""
        return WgpuResult(self.program.replay(), self.specs)

    def replays(self, count: int) -> list[Result]:
        """Run `count` times, with the inputs in `turns[0]`, `turns[1]`, …; does not wait."""
        require_turns(self.turns, count)
        return [WgpuResult(pending, self.specs) for pending in self.program.replays(count)]

    def seal(self) -> bool:
        """Make the next replay ready, which is certain to come; return whether it is."""
        return self.program.seal()

    def timed(self) -> list[tuple[str, str, float]]:
        """Run and time each dispatch: op, shader and seconds."""
        return [(t.label, t.shader, t.seconds) for t in self.program.timed()]

    @uninterrupted
    def keep(self, storages: Sequence[Storage]) -> None:
        """Turn these storages into states that outlive the run, then close it."""
        for storage in storages:
            storage.kind, storage.handle = "state", self._parts[storage]
            (buffer,) = {id(b.buffer): b.buffer for b in storage.handle[0].planes.values()}.values()
            # `close` below must not release what a state now has.
            self._owned.remove(buffer)
        self.close()

    def replay_between(self, before: Pairs, after: Pairs) -> None:
        """Copy tensors as `WgpuExecutor.copy` does, run, and copy outputs; does not wait."""
        pairs = (
            [(self._bind_whole(a), self._bind_whole(b)) for a, b in each]
            for each in (before, after)
        )
        self.program.replay_between(*pairs)

    def _bind_whole(self, node: Node) -> Binding:
        """Return the bytes of a dense tensor, not in blocks, that covers its whole storage."""
        return whole_binding(node, self._get_parts(node))

    @uninterrupted
    def close(self) -> None:
        """Release the memory; calling it again is harmless."""
        if hasattr(self, "program"):
            self.program.close()
        self._release()

    def _release(self) -> None:
        self._forget_work()
        if self._compiler is not None:
            self._compiler.close()
        for buffer in self._owned:
            buffer.release()
        self._owned.clear()


class WgpuPausable:
    """A graph whose runs other graphs may interrupt.

    Parameters
    ----------
    recorded : WgpuRecorded
        With slots that no other graphs use.
    turns : PausableTurns
        Those of all graphs that share the slots.
    """

    def __init__(self, recorded: WgpuRecorded, turns: PausableTurns) -> None:
        self._recorded = recorded
        self._turns = turns

    @property
    def costs(self) -> Sequence[Cost]:
        """Op and estimated cost of each dispatch, once it is ready."""
        return self._recorded.costs

    @uninterrupted
    def prepare(self, seconds: float) -> bool:
        """Prepare the graph for about `seconds`; return whether it is ready."""
        return self._recorded.advance(seconds)

    @uninterrupted
    def begin(self, inputs: Mapping[str, Array]) -> WgpuPausableRun:
        """Begin a run with these named inputs. It ends the executor's earlier pausable run."""
        self._recorded.advance()
        write_inputs(self._recorded.arrays, inputs)
        self._turns.now = run = WgpuPausableRun(self._recorded, self._turns)
        return run

    def close(self) -> None:
        """Release the memory; calling it again is harmless."""
        self._recorded.close()


class WgpuPausableRun:
    """A run of a `WgpuPausable`.

    Attributes
    ----------
    done : int
        Dispatches that were submitted.
    """

    def __init__(self, recorded: WgpuRecorded, turns: PausableTurns) -> None:
        self.done = 0
        self._recorded = recorded
        self._turns = turns
        self._last: Submitted | None = None

    @uninterrupted
    def advance(self, count: int) -> Submitted:
        """Submit the next dispatches."""
        require_under_way(self if self._turns.now is self else None)
        stop = self.done + count
        self._last = self._recorded.program.replay_range(self.done, stop)
        self.done = stop
        return self._last

    def result(self) -> WgpuResult:
        """Return the outputs on their way to the host, once all dispatches were submitted."""
        require_ended(self.done, self._recorded.dispatches)
        assert self._last is not None and self._last.reads is not None  # noqa: PT018
        return WgpuResult(self._last.reads, self._recorded.specs)

    def close(self) -> None:
        """End the run; calling it again is harmless."""
        if self._turns.now is self:
            self._turns.now = None


@dataclass(slots=True)
class PausableTurns:
    """The pausable run whose intermediates the slots of an executor hold."""

    now: WgpuPausableRun | None = None


class WgpuExecutor:
    """An executor on a wgpu device, which it owns.

    Parameters
    ----------
    capabilities : Capabilities or None
        What kernels may use, see `wgpu_backend.ml.opening`; None for those of the device.

    Attributes
    ----------
    rules : mapping of str to sequence of Rule
        Fusion rules for graphs recorded from now on, see `wgpu_backend.ops.op.fusions`.
    trust : Trust or None
        Tests rules of the self-test before their first use; None to use them untested.
    placement : Placement or None
        The placement of a model that has a part in the host's memory.
    stages : bool
        Whether products of many rows copy such weights to the device first. Runs that others may
        interrupt never do.
    """

    def __init__(self, device: Device, capabilities: Capabilities | None = None) -> None:
        self.device = device
        self.rules: Mapping[str, Sequence[Rule]] = {}
        self._capabilities = capabilities or complete(device.capabilities)
        self._weights = WeightStore(device)
        self._host_weights = WeightStore(device, purpose="host weights")
        self.trust: Trust | None = None
        self.placement: Placement | None = None
        self._on_host = HostMemory()
        self._slots = SharedSlots(device)
        # Of graphs that others may interrupt; one at a time has its values there.
        self._lasting_slots = SharedSlots(device)
        self._staging = SharedSlots(device)
        self.stages = False
        self._turns = PausableTurns()
        # Weak, so that a storage is freed with its last other reference, and its buffers with it.
        self._sources: WeakKeyDictionary[Storage, tuple[DType, Pieces]] = WeakKeyDictionary()
        self._states: WeakKeyDictionary[Storage, int] = WeakKeyDictionary()
        self.unclosed = Unclosed(f"executor on {device}", device)

    @property
    def info(self) -> DeviceInfo:
        """The device of the executor."""
        return self.device.info

    @property
    def capabilities(self) -> Capabilities:
        """The features that kernels may use; they are fixed for an executor."""
        return self._capabilities

    def as_if(self, capabilities: Capabilities) -> WgpuExecutor:
        """Return an executor with other capabilities that shares weights and memory with this one.

        It has the rules of this executor until it is given others. One of both is to be closed.
        """
        other = copy(self)
        other._capabilities = capabilities
        return other

    def use_host_memory(self, placement: Placement, at: int, *, tied: bool = False) -> None:
        """Keep weights and states in the host's memory from now on, as a placement requires.

        Parameters
        ----------
        at : int
            Position of this device in the placement.
        tied : bool
            Whether the embedding table is the output head, too.
        """
        self.placement = placement
        # Where the host's memory is the device's, a copy wins nothing.
        self.stages = self.info.kind == "discrete"
        self._on_host = placement.host_memory(at, tied=tied)

    def _store(self, label: str, *, alone: bool) -> WeightStore:
        on_host = self._on_host.has_weight(label)
        if not alone:
            return self._host_weights if on_host else self._weights
        return WeightStore(self.device, "host weights" if on_host else "weights", shared=False)

    @uninterrupted
    def weight(self, spec: Spec, data: Pieces, label: str, *, alone: bool = False) -> Storage:
        """Upload a weight: next to others, or `alone` into buffers that `free` releases."""
        rows = Rows(data, spec.dtype.nbytes(spec.shape[-1] if len(spec.shape) > 1 else spec.size))
        layout = self._layout(spec)
        if layout is not None and not layout.takes(rows, CHUNK_NBYTES):
            layout = None
        storage = Storage(spec.nbytes, "weight", label, layout=layout)
        store = self._store(label, alone=alone)
        try:
            storage.handle = store.add(spec, rows, label, self.capabilities, layout)
        except BaseException:
            if alone:
                store.close()
            raise
        self._sources[storage] = (spec.dtype, data)
        return storage

    def reserve_weight(self, spec: Spec, label: str) -> Storage:
        """Return storage of a weight that is not uploaded yet, with its future layout."""
        return Storage(spec.nbytes, "weight", label, layout=self._layout(spec))

    def _layout(self, spec: Spec) -> WeightLayout | None:
        """Return the layout of a weight, by type and shape; None for planes."""
        return select_layout(spec, self.capabilities, rounded=self._may_round())

    def _may_round(self) -> bool:
        """Return whether products of graphs recorded from now on may round activations."""
        return any(not rule.exact for rules in self.rules.values() for rule in rules)

    def bound(self, storage: Storage, part: Part, plane: str, access: Access) -> Binding:
        """Return the binding of a part: a layout's binding or a plane.

        For whoever does not know the layout of a weight its rows are put into planes, too, which
        takes as much memory again.
        """
        packed = part.packed.get(plane)
        if packed is not None and isinstance(packed.buffer, Texture) == (access == "texture"):
            return packed
        if plane not in part.planes and isinstance(storage.layout, WeightLayout):
            dtype, pieces = self._sources[storage]
            rows = Rows(pieces, dtype.nbytes(storage.layout.cols))
            store = self._store(storage.label, alone=True)
            # Kernels that read planes get a second copy, made when first needed.
            store.unfold(dtype, rows, part, storage.label)
        return part.planes[plane]

    @uninterrupted
    def state(self, spec: Spec, label: str, *, zeroed: bool = True) -> Storage:
        """Return storage that outlives graphs; its bytes are zeros, or undefined."""
        size = align(stored_nbytes(spec) + SLACK)
        # Buffers of activations are kept for reuse, those of caches are not.
        purpose: Purpose = "cache" if zeroed else "activations"
        if self._on_host.has_state(label):
            purpose = "host cache"
        buffer = self.device.buffer(size, purpose=purpose, label=label)
        if zeroed:
            self.device.clear(buffer)
        storage = Storage(spec.nbytes, "state", label, (whole_part(spec, _rows(spec), buffer),))
        self._states[storage] = size
        return storage

    @uninterrupted
    def free(self, storage: Storage) -> None:
        """Release the bytes of a state, or of an `alone` weight; calling it again is harmless."""
        self._sources.pop(storage, None)
        self._states.pop(storage, None)
        for part in storage.handle or ():
            for binding in (*part.planes.values(), *part.packed.values()):
                binding.buffer.release()
        storage.handle = None

    @uninterrupted
    def record(
        self,
        outputs: Sequence[Node],
        *,
        shared: bool = True,
        times: int = 1,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> WgpuRecorded:
        """Record a graph for running, up to `times` times in one submit."""
        slots = self._slots.take if shared else None
        can = self.capabilities
        return WgpuRecorded(
            self.device,
            can,
            outputs,
            self.rules,
            self.bound,
            slots,
            times,
            read=read,
            unread=unread,
            staging=self._staging.take if self.stages else None,
            find_wrong=self.trust.find_wrong if self.trust else None,
        )

    @uninterrupted
    def record_pausable(self, outputs: Sequence[Node], *, at_once: bool = True) -> WgpuPausable:
        """Record a graph whose runs other graphs may interrupt."""
        recorded = WgpuRecorded(
            self.device,
            self.capabilities,
            outputs,
            self.rules,
            self.bound,
            self._lasting_slots.take,
            at_once=at_once,
            most_work=MOST_WORK_OF_SOFTWARE if self.capabilities.software else MOST_WORK,
            find_wrong=self.trust.find_wrong if self.trust else None,
        )
        return WgpuPausable(recorded, self._turns)

    @uninterrupted
    def copy(self, pairs: Pairs) -> None:
        """Copy dense tensors of whole storages, each into one of the same size, on the device."""
        self.device.copy(
            [
                (whole_binding(a, a.storage.handle), whole_binding(b, b.storage.handle))
                for a, b in pairs
            ]
        )

    def drop(self, handle: tuple[Part, ...]) -> None:
        """Release the bytes of a storage that was collected; never waits."""
        for part in handle:
            for binding in (*part.planes.values(), *part.packed.values()):
                binding.buffer.release_soon()

    def cached_nbytes(self, keep: int | None = None) -> int:
        """Return the released bytes kept for reuse, after reducing them to `keep`."""
        if keep is not None:
            self.device.trim(keep)
        return self.device.memory_report().pool_nbytes

    def read(self, node: Node) -> Array:
        """Return the values of a computed node or a weight."""
        # Weights have other layouts on the device; their source has the values.
        if node.storage in self._sources:
            return weight_values(*self._sources[node.storage], node.spec)
        if node.storage.handle is None:
            raise ContextError(f"read: {node.spec.shape} {node.spec.dtype} has not been computed")
        if node.spec.dtype.quantised:
            return apply_strides(
                decode_blocks(node.spec.dtype, self.blocks(node)).reshape(-1), node.spec
            ).copy()
        (binding,) = node.storage.handle[0].planes.values()
        return decode(self.device.read(binding.buffer, binding.offset, binding.nbytes), node.spec)

    def blocks(self, node: Node) -> Bytes:
        """Return blocks of a state, (n, block_nbytes), from its first to the node's last."""
        count = -(-node.spec.span // node.spec.dtype.block)
        reads = plane_reads(node.spec.dtype, count, node.storage.handle[0])
        data = [self.device.read(b.buffer, b.offset, b.nbytes) for b in reads]
        return join_blocks(node.spec.dtype, count, data)

    def write(self, node: Node, data: bytes) -> None:
        """Write bytes into a dense state."""
        (binding,) = node.storage.handle[0].planes.values()
        offset = node.spec.dtype.nbytes(node.spec.offset)
        self.device.write(binding.buffer, data, binding.offset + offset)

    def memory_report(self) -> str:
        """Return the use of memory, as a table."""
        return str(self.device.memory_report())

    def cache_nbytes(self) -> dict[str, int]:
        """Return the bytes of states, by label."""
        return sum_by_name((storage.label, nbytes) for storage, nbytes in self._states.items())

    def graph_nbytes(self) -> int:
        """Return the bytes of intermediates, inputs and parameters."""
        graph = {"activations", "inputs", "params"}
        return sum(u.nbytes for u in self.device.memory_report().uses if u.purpose in graph)

    @uninterrupted
    def close(self) -> None:
        """Release everything and the device; calling it again is harmless."""
        self.unclosed.silence()
        self._sources.clear()
        self._slots.close()
        self._lasting_slots.close()
        self._staging.close()
        self._weights.close()
        self._host_weights.close()
        self.device.close()


def _rows(spec: Spec) -> int:
    return spec.shape[-2] if len(spec.shape) > 1 else 1
