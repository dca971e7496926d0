"""An op run between red zones, which show reads and writes outside its tensors.

Every operand and the result lie in buffers of their own with poison after them, and the result
begins as poison. Afterwards the poison around them and the operands must be unchanged, and no value
of the result may be poison. As floats poison is NaN, so values read past an operand
show in the result. The compiler bends an index beyond a binding to the binding's end, or drops the
access, so a far access lands in the zone or nowhere, and never in other buffers.

Loops count their iterations here, so a shader that never ends is an error that names the loop.
Elsewhere it runs until the driver resets the device, which is a `DeviceLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.program import Program
from wgpu_backend.device.wgsl.loop_counters import CountedLoops, counted_loops
from wgpu_backend.device.wgsl.module import BindingDecl
from wgpu_backend.graph.node import Launch, Node, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.wgpu.dispatch import Kernel, kernels
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ml.wgpu.storage import Part
from wgpu_backend.ops.host_values import decode

# Both are NaN in every float type, and they differ: values copied from past an operand show.
OPERAND_POISON = np.frombuffer(b"\xff\xff\xff\xff", np.uint8)
RESULT_POISON = np.frombuffer(b"\xf1\xff\xf1\x7f", np.uint8)
# Bytes of poison after each tensor. Accesses further out are not found.
GUARD_NBYTES = 64 << 10
# A thread may write the whole vector of four that the last value lies in.
VECTOR = 4
WORD_NBYTES = 4
SLOT_NBYTES = 256

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RedZoneResult:
    """The result of a run between red zones.

    Parameters
    ----------
    values : ndarray
        The result; f16 stays f16, bf16 comes as f32.
    strays : tuple of str
        What was found outside, in words; empty when all is well.
    """

    values: Array
    strays: tuple[str, ...]


def run_in_red_zones(
    executor: WgpuExecutor, node: Tensor, expected: Callable[[Array], bool] | None = None
) -> RedZoneResult:
    """Run the op of one node between red zones.

    Parameters
    ----------
    expected : callable or None
        Returns whether values are correct; if not, reads past operands are looked for.
    node : Tensor
        Result of an op of a plain type, which must not have been computed. Operands in blocks have
        no zones.

    Raises
    ------
    ShaderError
        The op's WGSL does not compile or does not fit the op, or a loop of it does not end.
    """
    launch, call = node.launch, node.call
    assert launch is not None
    assert call is not None
    used = [*launch.operands.values(), *([] if launch.into is None else [launch.into])]
    operands = [n for n in used if n.storage.kind == "intermediate"]
    if operands:
        cast("Context", node.context).compute(*(cast("Tensor", n) for n in operands))
    with ExitStack() as stack:
        zones = _Zones(executor, stack)
        for operand in launch.operands.values():
            # Blocks are read where they lie, plane by plane.
            if operand.spec.dtype.quantised:
                continue
            zones.add(operand.storage, _read_bytes(executor, operand.storage), OPERAND_POISON)
        if launch.into is not None:
            zones.add(node.storage, _read_bytes(executor, node.storage), RESULT_POISON)
        else:
            zones.add(node.storage, _repeat(RESULT_POISON, launch.out.nbytes), RESULT_POISON)
        made = list(kernels(call.op, launch, executor.capabilities, zones.parts))
        zones.run(node, launch, made)
        found = zones.result(node, launch)
        if expected is None or expected(found.values):
            return found
        return RedZoneResult(found.values, (*found.strays, *zones.reads_outside(node, launch)))


def _read_bytes(executor: WgpuExecutor, storage: Storage) -> Bytes:
    if isinstance(storage.handle, bytes):
        return np.frombuffer(storage.handle, np.uint8)
    binding = executor.bound(storage, storage.handle[0], "", "read")
    size = -(-storage.nbytes // 4) * 4
    data = executor.device.read(binding.buffer, binding.offset, size)
    return np.frombuffer(data, np.uint8, storage.nbytes)


def _repeat(values: Bytes, size: int) -> Bytes:
    """Repeat values like `numpy.resize`, in a fortieth of the time."""
    return np.tile(values, -(-size // values.size))[:size]


class _Zones:
    """Buffers with poison after their values, by the storage they stand for."""

    def __init__(self, executor: WgpuExecutor, stack: ExitStack) -> None:
        self._device = executor.device
        self._bound = executor.bound
        self._stack = stack
        self._before: dict[Storage, Bytes] = {}
        self._buffers: dict[Storage, Buffer] = {}
        self._programs: list[Program] = []

    def add(self, storage: Storage, values: Bytes, poison: Bytes) -> None:
        """Make the buffer of a storage."""
        if storage in self._buffers:
            return
        size = -(-values.size // SLOT_NBYTES) * SLOT_NBYTES + GUARD_NBYTES
        filled = _repeat(poison, size)
        filled[: values.size] = values
        self._before[storage] = filled
        self._buffers[storage] = self._own(filled)

    def _own(self, values: Bytes) -> Buffer:
        buffer = self._device.buffer(values.size, purpose="activations", label="guarded")
        self._stack.callback(buffer.release)
        self._device.write(buffer, values)
        return buffer

    def parts(self, node: Node) -> tuple[Part, ...]:
        """Return the parts of a node, as an executor does for kernels."""
        if node.storage not in self._buffers:
            return node.storage.handle
        buffer = self._buffers[node.storage]
        return (Part(0, 1, {"": Binding(buffer, 0, buffer.nbytes)}),)

    def run(self, node: Tensor, launch: Launch, made: list[Kernel]) -> None:
        """Run the kernels of a launch and wait for them."""
        counted: list[tuple[CountedLoops, Buffer]] = []
        dispatches = [self._dispatch(node, launch, kernel, counted) for kernel in made]
        program = self._device.program(dispatches, label="guarded")
        self._stack.callback(program.close)
        self._programs.append(program)
        program.replay().wait()
        for loops, buffer in counted:
            error = loops.error(np.frombuffer(self._device.read(buffer), np.uint32).tolist())
            if error is not None:
                raise error

    def _dispatch(
        self,
        node: Tensor,
        launch: Launch,
        kernel: Kernel,
        counted: list[tuple[CountedLoops, Buffer]],
    ) -> Dispatch:
        bindings: list[Binding] = []
        for decl in kernel.shader.bindings:
            if decl.access == "uniform":
                params = np.frombuffer(kernel.params.ljust(SLOT_NBYTES, b"\0"), np.uint8)
                bindings.append(Binding(self._own(params), 0, -(-len(kernel.params) // 16) * 16))
            else:
                bindings.append(self._binding(node, launch, decl, kernel.part))
        # The unchanged shader is compiled first, so that errors show its own text.
        pipeline = self._device.pipeline(kernel.shader)
        loops = counted_loops(kernel.shader, self._device.capabilities.max_storage_bindings)
        if loops is not None:
            buffer = self._own(np.zeros(loops.nbytes, np.uint8))
            counted.append((loops, buffer))
            bindings.append(Binding(buffer, 0, loops.nbytes))
            pipeline = self._device.pipeline(loops.shader)
        return Dispatch(pipeline, tuple(bindings), kernel.groups, "guarded", kernel.work)

    def _binding(self, node: Tensor, launch: Launch, decl: BindingDecl, part: int) -> Binding:
        """Return the binding of an operand, one of its planes, its texture, or the result."""
        operand, plane = decl.name, ""
        if operand != "y" and operand not in launch.operands:
            operand, _, plane = operand.rpartition("_")
        target = node if operand == "y" else launch.operands[operand]
        # A texture has no zones: a texel outside of it is zero, whatever its place.
        parts = target.storage.handle if decl.access == "texture" else self.parts(target)
        return self._bound(target.storage, parts[min(part, len(parts) - 1)], plane, decl.access)

    def result(self, node: Tensor, launch: Launch) -> RedZoneResult:
        """Read the result, and check the memory around it and the operands."""
        after = {s: np.frombuffer(self._device.read(b), np.uint8) for s, b in self._buffers.items()}
        strays = list(self._around(after[node.storage], node.storage, launch.out))
        for name, operand in launch.operands.items():
            if operand.storage is not node.storage and operand.storage in self._before:
                strays += self._find_changes(name, operand, after[operand.storage])
        spec = (
            launch.out
            if launch.into is not None
            else Spec.dense(launch.out.shape, launch.out.dtype)
        )
        return RedZoneResult(decode(after[node.storage].tobytes(), spec), tuple(strays))

    def _around(self, after: Bytes, storage: Storage, out: Spec) -> Iterator[str]:
        itemsize = out.dtype.block_nbytes
        vector = VECTOR * max(itemsize, WORD_NBYTES)
        end = -(-storage.nbytes // vector) * vector
        stray = np.flatnonzero(after[end:] != self._before[storage][end:])
        if stray.size:
            yield (
                f"it writes outside the result: to index {(end + int(stray[0])) // itemsize} of y, "
                f"which has {storage.nbytes // itemsize} values"
            )
        floats = out.dtype.name in ("f32", "f16", "bf16")
        if storage.kind == "intermediate" and floats and storage.nbytes:
            # A value whose bytes are still poison was not written.
            same = after[: storage.nbytes] == self._before[storage][: storage.nbytes]
            left = np.flatnonzero(same.reshape(-1, itemsize).all(axis=1))
            if left.size:
                yield (
                    f"it leaves {left.size} of {out.size} values unwritten, "
                    f"the first at {int(left[0])}"
                )

    def reads_outside(self, node: Tensor, launch: Launch) -> Iterator[str]:
        """Find operands whose poison changes the result, and the distance of the reads."""
        if launch.into is not None or len(launch.operands) != len(self._buffers) - 1:
            # The kernel writes an operand that it reads, or one operand stands for another.
            return
        for name, operand in launch.operands.items():
            spec, itemsize = operand.spec, operand.spec.dtype.block_nbytes
            values = self._before[operand.storage]
            end = -(-operand.storage.nbytes // itemsize) * itemsize
            plain = self._result_with(node, operand.storage, values)

            def shows(stop: int, end: int = end, op: Node = operand, was: Bytes = plain) -> bool:
                changed = self._before[op.storage].copy()
                # If zeros in place of poison change the result, it depends on bytes past the end.
                changed[end:stop] = 0
                return not np.array_equal(self._result_with(node, op.storage, changed), was)

            if not shows(values.size):
                continue
            # Bisection: the nearest read that shows lies in between.
            low, high = end, values.size
            while high - low > itemsize:
                middle = low + (high - low) // itemsize // 2 * itemsize
                low, high = (low, middle) if shows(middle) else (middle, high)
            count = end // itemsize
            past = low // itemsize - count + 1
            yield (
                f"it reads outside operand {name}: {name}[{low // itemsize}], {past} past the end "
                f"of its storage of {count} values; it is {spec.shape} of offset {spec.offset} and "
                f"strides {spec.strides}"
            )

    def _result_with(self, node: Tensor, storage: Storage, values: Bytes) -> Bytes:
        """Compute the bytes of the result with these bytes in a storage and its red zone."""
        self._device.write(self._buffers[node.storage], self._before[node.storage])
        self._device.write(self._buffers[storage], values)
        for program in self._programs:
            program.replay().wait()
        result = np.frombuffer(self._device.read(self._buffers[node.storage]), np.uint8)
        self._device.write(self._buffers[storage], self._before[storage])
        return result[: node.storage.nbytes]

    def _find_changes(self, name: str, operand: Node, after: Bytes) -> Iterator[str]:
        changed = np.flatnonzero(after != self._before[operand.storage])
        if changed.size:
            at = int(changed[0]) // operand.spec.dtype.block_nbytes
            yield f"it writes into operand {name}, the first time to index {at} of its storage"
