"""Runs graphs on a device: a plan becomes buffers, pipelines and a Program, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wgpu_backend.cpu.blocks import decoded
from wgpu_backend.cpu.values import decode, strided
from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.memory import Purpose
from wgpu_backend.device.program import Given, Pending, Program
from wgpu_backend.device_info import Capabilities, DeviceInfo
from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ContextError
from wgpu_backend.graph.fusion import Rule, fused
from wgpu_backend.graph.memory import SLACK, MemoryPlan, plan
from wgpu_backend.graph.node import Launch, Node, Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.executor import Array, Pieces, checked_input, in_one, sums, weight_values
from wgpu_backend.ml.packing import Packing, packing
from wgpu_backend.ml.planes import aligned, joined, plane_nbytes, stored_nbytes
from wgpu_backend.ml.super_blocks import Bytes
from wgpu_backend.ml.wgpu_launch import Kernel, kernels
from wgpu_backend.ml.wgpu_storage import Part, SharedSlots, WeightStore, looked_at, whole
from wgpu_backend.shader import Access, BindingDecl


class WgpuExecutor:
    """Executor on a wgpu device, which it owns.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    rules : mapping of str to sequence of Rule
        Fusion rules for graphs recorded from now on, see `wgpu_backend.ops.op.fusions`.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rules: Mapping[str, Sequence[Rule]] = {}
        self._weights = WeightStore(device)
        self._slots = SharedSlots(device)
        self._sources: dict[Storage, tuple[DType, Pieces]] = {}
        self._states: dict[Storage, int] = {}

    @property
    def info(self) -> DeviceInfo:
        """Device it runs on."""
        return self.device.info

    @property
    def capabilities(self) -> Capabilities:
        """What kernels may use."""
        return self.device.capabilities

    def weight(self, spec: Spec, data: Pieces, label: str, *, alone: bool = False) -> Storage:
        """Upload a weight: beside others, or `alone` into buffers that `free` gives back."""
        whole_data = in_one(data)
        packed = self._packing(spec, whole_data)
        storage = _weight(spec, label, packed)
        store = WeightStore(self.device, shared=False) if alone else self._weights
        try:
            storage.handle = store.add(spec, whole_data, label, packed)
        except BaseException:
            if alone:
                store.close()
            raise
        self._sources[storage] = (spec.dtype, data)
        return storage

    def sketched(self, spec: Spec, label: str) -> Storage:
        """Storage of a weight that is nowhere yet, but is to be in an image where it may."""
        return _weight(spec, label, packing(spec, self.capabilities, rounded=self._rounds()))

    def _packing(self, spec: Spec, data: memoryview) -> Packing | None:
        """How a weight lies in an image; None for one that does not go into any."""
        found = packing(spec, self.capabilities, rounded=self._rounds())
        if found is None:
            return None
        rows = np.frombuffer(data, np.uint8).reshape(-1, spec.dtype.nbytes(spec.shape[-1]))
        return found if found.fits(rows) else None

    def _rounds(self) -> bool:
        """Whether products of graphs recorded from now on round activations to eight bits."""
        return any(rule.name == "mulmat_q8" for rules in self.rules.values() for rule in rules)

    def bound(self, storage: Storage, part: Part, plane: str, access: Access) -> Binding:
        """What a kernel binds of a part: its image or a plane.

        Products and `rows` read images. For whoever does anything else with such a weight its rows
        are put into a buffer, too, which takes as much memory again.
        """
        if access == "image":
            return part.images[plane]
        if plane not in part.planes and part.images:
            dtype, pieces = self._sources[storage]
            row_nbytes = dtype.nbytes(storage.image_cols)
            data = in_one(pieces)[part.first_row * row_nbytes :][: part.rows * row_nbytes]
            WeightStore(self.device, shared=False).unfold(dtype, data, part, storage.label)
        return part.planes[plane]

    def state(self, spec: Spec, label: str) -> Storage:
        """Zeroed storage that outlives graphs."""
        size = aligned(stored_nbytes(spec) + SLACK)
        buffer = self.device.buffer(size, purpose="cache", label=label)
        self.device.clear(buffer)
        storage = Storage(spec.nbytes, "state", label, (whole(spec, _rows(spec), buffer),))
        self._states[storage] = size
        return storage

    def free(self, storage: Storage) -> None:
        """Release the bytes of a state, or of a weight that is alone; again is harmless."""
        self._sources.pop(storage, None)
        self._states.pop(storage, None)
        for part in storage.handle or ():
            for binding in (*part.planes.values(), *part.images.values()):
                binding.buffer.release()
        storage.handle = None

    def record(self, outputs: Sequence[Node], *, shared: bool = True) -> WgpuRecorded:
        """Make a graph ready to run."""
        return WgpuRecorded(self, outputs, shared=shared)

    def shared_slots(self, sizes: tuple[int, ...]) -> list[Buffer]:
        """Buffers for the slots of a plan, which recorded graphs take turns in."""
        return self._slots.take(sizes)

    def read(self, node: Node) -> Array:
        """Values of a computed node or a weight."""
        if node.storage in self._sources:
            return weight_values(*self._sources[node.storage], node.spec)
        if node.storage.handle is None:
            raise ContextError(f"read: {node.spec.shape} {node.spec.dtype} has not been computed")
        if node.spec.dtype.quantised:
            return strided(
                decoded(node.spec.dtype, self.blocks(node)).reshape(-1), node.spec
            ).copy()
        (binding,) = node.storage.handle[0].planes.values()
        return decode(self.device.read(binding.buffer, binding.offset, binding.nbytes), node.spec)

    def blocks(self, node: Node) -> Bytes:
        """Blocks of a state, (n, block_nbytes), from its first to the last that `node` looks at."""
        count = -(-node.spec.span // node.spec.dtype.block)
        reads = _plane_reads(node.spec.dtype, count, node.storage.handle[0])
        data = [self.device.read(b.buffer, b.offset, b.nbytes) for b in reads]
        return _joined(node.spec.dtype, count, data)

    def write(self, node: Node, data: bytes) -> None:
        """Put bytes where a dense state lies."""
        (binding,) = node.storage.handle[0].planes.values()
        offset = node.spec.dtype.nbytes(node.spec.offset)
        self.device.write(binding.buffer, data, binding.offset + offset)

    def memory_report(self) -> str:
        """Who holds how much, as a table."""
        return str(self.device.memory_report())

    def cache_nbytes(self) -> dict[str, int]:
        """Bytes of states, by label."""
        return sums((storage.label, nbytes) for storage, nbytes in self._states.items())

    def graph_nbytes(self) -> int:
        """Bytes of intermediates, inputs and parameters."""
        graph = {"activations", "inputs", "params"}
        return sum(u.nbytes for u in self.device.memory_report().uses if u.purpose in graph)

    def close(self) -> None:
        """Release everything and the device; again is harmless."""
        self._sources.clear()
        self._slots.close()
        self._weights.close()
        self.device.close()


def intermediate(spec: Spec) -> Storage:
    """Storage for the result of an op."""
    return Storage(stored_nbytes(spec), "intermediate")


def _weight(spec: Spec, label: str, packed: Packing | None) -> Storage:
    if packed is None:
        return Storage(spec.nbytes, "weight", label)
    cols, step = spec.shape[-1], packed.slice_rows
    return Storage(spec.nbytes, "weight", label, image_cols=cols, slice_rows=step)


def _rows(spec: Spec) -> int:
    return spec.shape[-2] if len(spec.shape) > 1 else 1


def _plane_reads(dtype: DType, blocks: int, part: Part) -> list[Binding]:
    """What to read of each plane for that many blocks: whole words."""
    sizes = plane_nbytes(dtype)
    return [
        Binding(at.buffer, at.offset, max(-(-blocks * sizes[name] // 4) * 4, 4))
        for name, at in part.planes.items()
    ]


def _joined(dtype: DType, blocks: int, data: Sequence[bytes | memoryview]) -> Bytes:
    sizes = plane_nbytes(dtype).items()
    return joined(
        {
            name: np.frombuffer(plane, np.uint8, blocks * nbytes).reshape(blocks, nbytes)
            for plane, (name, nbytes) in zip(data, sizes, strict=True)
        }
    )


@dataclass(frozen=True, slots=True)
class WgpuResult:
    """Outputs on their way to the host."""

    pending: Pending
    specs: tuple[Spec, ...]

    def wait(self) -> list[Array]:
        """Outputs in the order they were recorded."""
        data = iter(self.pending.wait())
        return [_values(s, [next(data) for _ in plane_nbytes(s.dtype)]) for s in self.specs]


def _values(spec: Spec, data: Sequence[bytes | memoryview]) -> Array:
    """Values of an output from what was read of each of its planes."""
    if not spec.dtype.quantised:
        return decode(data[0], Spec.dense(spec.shape, spec.dtype))
    blocks = _joined(spec.dtype, spec.size // spec.dtype.block, data)
    return decoded(spec.dtype, blocks).reshape(spec.shape)


class WgpuRecorded:
    """A graph as a Program, with its inputs in one buffer and its parameters in another."""

    def __init__(self, executor: WgpuExecutor, outputs: Sequence[Node], *, shared: bool) -> None:
        self._device = executor.device
        self._bound = executor.bound
        self.scheduled: Sequence[Node] = schedule(outputs)
        nodes = fused(self.scheduled, outputs, executor.rules, executor.capabilities, intermediate)
        self.plan: MemoryPlan = plan(nodes, outputs)
        self._specs = tuple(n.spec for n in outputs)
        self._owned: list[Buffer] = []
        self._named: dict[str, tuple[Spec, Array]] = {}
        self._parts: dict[Storage, tuple[Part, ...]] = {}
        try:
            self._place_intermediates(executor.shared_slots if shared else self._own_slots)
            self.program = self._program(outputs, self._place_inputs(outputs))
        except BaseException:
            self._release()
            raise

    def _own(self, nbytes: int, purpose: Purpose, label: str) -> Buffer:
        """Make a buffer that closing releases."""
        self._owned.append(self._device.buffer(nbytes, purpose=purpose, label=label))
        return self._owned[-1]

    def _own_slots(self, sizes: tuple[int, ...]) -> list[Buffer]:
        return [self._own(nbytes, "activations", "slot") for nbytes in sizes]

    def _place_intermediates(self, take: Callable[[tuple[int, ...]], list[Buffer]]) -> None:
        slots = take(self.plan.slot_nbytes)
        made: dict[Storage, Spec] = {}
        for node, launch in self.plan.steps:
            for operand in (launch.operands[name] for name in launch.writes):
                made.setdefault(
                    operand.storage, operand.spec
                )  # a part of what an op made is no news
            if not launch.into:
                made[node.storage] = launch.out
        for storage, slot in self.plan.slot_of.items():
            self._parts[storage] = (whole(made[storage], 1, slots[slot]),)

    def _place_inputs(self, outputs: Sequence[Node]) -> Given | None:
        """Put the inputs into one buffer: named ones in front, rewritten by one write each run."""
        nodes = [n for _, launch in self.plan.steps for n in launch.operands.values()]
        found = {n.storage: n for n in [*nodes, *outputs] if n.storage.kind == "input"}
        ordered = sorted(found, key=lambda s: s.label == "")
        offsets: dict[Storage, int] = {}
        end = named = 0
        for storage in ordered:
            offsets[storage] = end
            end += aligned(storage.nbytes + SLACK)
            if storage.label:
                named = end
        if not ordered:
            return None
        values = np.zeros(named, np.uint8)
        buffer = self._own(end, "inputs", "inputs")
        for storage, offset in offsets.items():
            size = aligned(storage.nbytes + SLACK)
            self._parts[storage] = (Part(0, 1, {"": Binding(buffer, offset, size)}),)
            if storage.label:
                spec = Spec.dense(storage.handle.shape, storage.handle.dtype)
                room: Array = np.ndarray(spec.shape, spec.dtype.numpy, values.data, offset)
                self._named[storage.label] = (spec, room)
            else:
                self._device.write(buffer, storage.handle, offset)
        return (Binding(buffer, 0, named), values.data) if named else None

    def _parts_of(self, node: Node) -> tuple[Part, ...]:
        if node.storage in self._parts:
            return self._parts[node.storage]
        if node.storage.handle is None:
            raise ContextError(f"{node.storage.label or node.spec.shape}: its storage was released")
        return node.storage.handle

    def _program(self, outputs: Sequence[Node], given: Given | None) -> Program:
        made: list[tuple[Node, Launch, Kernel]] = []
        for node, launch in self.plan.steps:
            assert node.call is not None
            made += [
                (node, launch, kernel)
                for kernel in kernels(
                    node.call.op, launch, self._device.capabilities, self._parts_of
                )
            ]
        params = self._upload_params([kernel.params for _, _, kernel in made])
        dispatches = [self._dispatch(*m, p) for m, p in zip(made, params, strict=True)]
        self.dispatches = len(dispatches)
        reads = [read for node in outputs for read in self._readings(node)]
        return self._device.program(dispatches, reads=reads, given=given, label="graph")

    def _upload_params(self, packed: Sequence[bytes]) -> list[Binding | None]:
        """Equal parameter blocks share a place in one uniform buffer."""
        places: dict[bytes, int] = {}
        end = 0
        for block in packed:
            if block and block not in places:
                places[block] = end
                end += aligned(len(block))
        if not places:
            return [None] * len(packed)
        buffer = self._own(end, "params", "params")
        blocks = (block.ljust(aligned(len(block)), b"\0") for block in places)
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
        """What is behind a binding: an operand, one of its planes, its image, or the result."""
        operand, plane = decl.name, ""
        if operand != "y" and operand not in launch.operands:
            operand, _, plane = operand.rpartition("_")
        target = node if operand == "y" else launch.operands[operand]
        parts, _ = looked_at(target, self._parts_of(target))
        part = parts[min(index, len(parts) - 1)]
        return self._bound(target.storage, part, plane, decl.access)

    def _readings(self, node: Node) -> list[Binding]:
        dtype = node.spec.dtype
        blocks = node.spec.nbytes // dtype.block_nbytes
        return _plane_reads(dtype, blocks, self._parts_of(node)[0])

    def run(self, inputs: Mapping[str, Array]) -> WgpuResult:
        """Write the named inputs and run; does not wait."""
        if inputs.keys() != self._named.keys():
            raise ContextError(f"run: inputs are {sorted(self._named)}, got {sorted(inputs)}")
        for name, values in inputs.items():
            spec, room = self._named[name]
            room[...] = checked_input(name, spec, values)
        return WgpuResult(self.program.replay(), self._specs)

    def timed(self) -> list[tuple[str, str, float]]:
        """Run with a clock: op, shader and seconds of each dispatch."""
        return [(t.label, t.shader, t.seconds) for t in self.program.timed()]

    def keep(self, storages: Sequence[Storage]) -> None:
        """After a run: make these storages states of their own, and close."""
        for storage in storages:
            storage.kind, storage.handle = "state", self._parts[storage]
            (buffer,) = {id(b.buffer): b.buffer for b in storage.handle[0].planes.values()}.values()
            self._owned.remove(buffer)
        self.close()

    def close(self) -> None:
        """Give memory back; again is harmless."""
        self.program.close()
        self._release()

    def _release(self) -> None:
        for buffer in self._owned:
            buffer.release()
        self._owned.clear()
