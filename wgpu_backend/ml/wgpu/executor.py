"""Weights, states and recorded graphs on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from weakref import WeakKeyDictionary

from wgpu_backend.device.buffers import Binding, Texture
from wgpu_backend.device.device import Device
from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.device.wgsl.module import Access
from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ContextError, Unclosed
from wgpu_backend.files.quantize import decode_blocks
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
from wgpu_backend.graph.fusion import Rule
from wgpu_backend.graph.memory import SLACK
from wgpu_backend.graph.node import Node, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import complete, select_layout
from wgpu_backend.ml.executor import Array, Pairs, Pieces, sum_by_name, weight_values
from wgpu_backend.ml.wgpu.recorded import WgpuRecorded
from wgpu_backend.ml.wgpu.storage import (
    CHUNK_NBYTES,
    Part,
    SharedSlots,
    WeightStore,
    join_blocks,
    plane_reads,
    whole_binding,
    whole_part,
)
from wgpu_backend.ml.wgpu.weight_rows import Rows
from wgpu_backend.ops.host_values import apply_strides, decode
from wgpu_backend.ops.layouts.layout import WeightLayout
from wgpu_backend.ops.layouts.planes import align, stored_nbytes
from wgpu_backend.ops.layouts.super_blocks import Bytes


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
    """

    def __init__(self, device: Device, capabilities: Capabilities | None = None) -> None:
        self.device = device
        self.rules: Mapping[str, Sequence[Rule]] = {}
        self._capabilities = capabilities or complete(device.capabilities)
        self._weights = WeightStore(device)
        self._slots = SharedSlots(device)
        # Weak, so that a storage is freed with its last other reference, and its buffers with it.
        self._sources: WeakKeyDictionary[Storage, tuple[DType, Pieces]] = WeakKeyDictionary()
        self._states: WeakKeyDictionary[Storage, int] = WeakKeyDictionary()
        self.unclosed = Unclosed(f"executor on {device}", device)

    @property
    def info(self) -> DeviceInfo:
        """The device it runs on."""
        return self.device.info

    @property
    def capabilities(self) -> Capabilities:
        """The features that kernels may use; they are fixed for an executor."""
        return self._capabilities

    def as_if(self, capabilities: Capabilities) -> WgpuExecutor:
        """Return an executor of the same weights and memory with other capabilities.

        It has the rules of this executor until it is given others. One of both is to be closed.
        """
        other = copy(self)
        other._capabilities = capabilities
        return other

    @uninterrupted
    def weight(self, spec: Spec, data: Pieces, label: str, *, alone: bool = False) -> Storage:
        """Upload a weight: next to others, or `alone` into buffers that `free` releases."""
        rows = Rows(data, spec.dtype.nbytes(spec.shape[-1] if len(spec.shape) > 1 else spec.size))
        layout = self._layout(spec)
        if layout is not None and not layout.takes(rows, CHUNK_NBYTES):
            layout = None
        storage = Storage(spec.nbytes, "weight", label, layout=layout)
        store = WeightStore(self.device, shared=False) if alone else self._weights
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
            store = WeightStore(self.device, shared=False)
            store.unfold(dtype, rows, part, storage.label)
        return part.planes[plane]

    @uninterrupted
    def state(self, spec: Spec, label: str, *, zeroed: bool = True) -> Storage:
        """Return storage that outlives graphs; its bytes are zeros, or undefined."""
        size = align(stored_nbytes(spec) + SLACK)
        purpose = "cache" if zeroed else "activations"  # the latter are kept for reuse
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
        self, outputs: Sequence[Node], *, shared: bool = True, times: int = 1, read: bool = True
    ) -> WgpuRecorded:
        """Record a graph for running, up to `times` times in one submit."""
        slots = self._slots.take if shared else None
        can = self.capabilities
        return WgpuRecorded(
            self.device, can, outputs, self.rules, self.bound, slots, times, read=read
        )

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
        self._weights.close()
        self.device.close()


def _rows(spec: Spec) -> int:
    return spec.shape[-2] if len(spec.shape) > 1 else 1
