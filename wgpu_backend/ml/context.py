"""The Context: it makes the tensors of a graph, computes them, and keeps them until it closes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike

from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.dtypes import BF16, F32, I32, QUANTISABLE, DType, as_dtype, convert_values
from wgpu_backend.errors import ContextError, DeviceError, DTypeError, ShapeError
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.graph.node import Builder, Call, Launch, Node, Storage
from wgpu_backend.graph.spec import Extents, Spec, extents
from wgpu_backend.ml.display import Likeness, compare
from wgpu_backend.ml.executor import Array, Executor, Pausable, Recorded
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.tensor import Tensor, check_shape, leaf
from wgpu_backend.ops.constants import as_array, default_dtype
from wgpu_backend.ops.layouts.planes import stored_nbytes
from wgpu_backend.ops.shape import copying, creation

# A loop that adds to one graph for ever would otherwise end in a full memory.
MAX_GRAPH_NODES = 1 << 20
# See `wgpu_backend.dtypes.as_dtype`.
Type = DType | str | np.dtype[Any] | type[np.generic]


class Context:
    """A maker of tensors, which it computes.

    Use it as a context manager, or `close` it; closing gives back all device memory that its
    tensors hold.

    Parameters
    ----------
    max_nodes : int
        Ops that it may make.
    """

    def __init__(self, executor: Executor, max_nodes: int = MAX_GRAPH_NODES) -> None:
        self._executor = executor
        self._states: list[Storage] = []
        self._closed = False
        self._max_nodes = max_nodes
        self._nodes = 0
        self._forward: list[Node] = []
        self.batch_size = 1
        # Tensors know their context: one that is remembered for ever would keep it for ever.
        self.memo: MutableMapping[Any, Tensor] = WeakValueDictionary()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def executor(self) -> Executor:
        """The executor that holds the tensors' bytes and runs graphs."""
        return self._executor

    @property
    def device(self) -> DeviceInfo:
        """The device that holds the tensors."""
        return self._executor.info

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Context({self._executor.info.id}, {self._nodes} ops made{state})"

    def _check(self) -> None:
        if self._closed:
            raise ContextError("context: it is closed; make a new one")

    @property
    def _builder(self) -> Builder:
        return cast("Builder", self)

    # Tensors made of shapes and values: inputs, states, constants, arange.

    def input(self, name: str, shape: int | Sequence[Extents], dtype: Type = F32) -> Tensor:
        """Make a tensor that a recorded graph gets anew on every run, by `name`."""
        self._check()
        spec = Spec.dense(shape, dtype)
        plain = not spec.dtype.quantised
        _require(spec.dtype, plain, f"input {name}", "a plain type; or use from_bytes")
        return leaf(spec, Storage(spec.nbytes, "input", name, spec), self._builder)

    @uninterrupted
    def state(
        self, shape: int | Sequence[Extents], dtype: Type = F32, label: str = "state"
    ) -> Tensor:
        """Make a zeroed tensor that ops may write into, kept until the context closes.

        Raises
        ------
        DTypeError
            `dtype` is a block format that ops cannot write.
        ShapeError, OutOfMemory
            There is no tensor of that shape, or not as much memory.
        """
        self._check()
        spec = Spec.dense(shape, dtype)
        writable = not spec.dtype.quantised or spec.dtype in QUANTISABLE
        _require(spec.dtype, writable, label, f"a plain type, {', '.join(map(str, QUANTISABLE))}")
        storage = self._executor.state(spec, label)
        self._states.append(storage)
        return leaf(spec, storage, self._builder)

    def zeros(self, *shape: Extents, dtype: Type = F32) -> Tensor:
        """Make a tensor of zeros.

        Parameters
        ----------
        dtype : DType, str or NumPy type
            See `wgpu_backend.dtypes.as_dtype`; so wherever a type is named.
        """
        return self.state(shape, dtype, "zeros")

    def empty(self, *shape: Extents, dtype: Type = F32) -> Tensor:
        """Make a tensor for ops to write into; its values are zeros until then."""
        return self.state(shape, dtype, "empty")

    def from_numpy(self, values: ArrayLike, dtype: Type | None = None) -> Tensor:
        """Make a tensor with the values of an array, converted to `dtype`.

        Parameters
        ----------
        dtype : DType, str, NumPy type or None
            None keeps bool, u32 and complex64, and takes i32 for other integers, f32 for other
            numbers.

        Raises
        ------
        DTypeError
            A value does not fit: it is beyond the type's range, or a fraction among integers. Or
            `dtype` is bf16 or a block format: give their bytes to `from_bytes`.
        ShapeError
            Lists have rows of several lengths.
        """
        return self._convert("from_numpy", values, None if dtype is None else as_dtype(dtype))

    def from_floats(self, values: Sequence[float], *shape: Extents) -> Tensor:
        """Make an f32 tensor with these values; DTypeError if one is beyond f32."""
        return self._convert("from_floats", values, F32, shape)

    def from_ints(self, values: Sequence[int], *shape: Extents) -> Tensor:
        """Make an i32 tensor with these values; DTypeError if one is not an i32."""
        return self._convert("from_ints", values, I32, shape)

    def _convert(
        self,
        asked: str,
        values: ArrayLike,
        dtype: DType | None,
        shape: Sequence[Extents] | None = None,
    ) -> Tensor:
        array = as_array(asked, values)
        wanted = dtype or default_dtype(array.dtype)
        if wanted.numpy is None or wanted == BF16:
            raise DTypeError(f"{asked}: {wanted} has no NumPy type; give from_bytes its bytes")
        data = convert_values(asked, array, wanted).tobytes()
        found = array.shape if shape is None else check_shape(array.size, shape, asked)
        return self.constant(data, wanted, found)

    def from_bytes(self, dtype: Type, data: bytes, *shape: Extents) -> Tensor:
        """Make a tensor with these bytes unchanged.

        Raises
        ------
        ShapeError
            There are not as many bytes as the shape needs.
        """
        spec = Spec.dense(shape, dtype)
        _require_bytes("from_bytes", spec, data)
        if spec.dtype.quantised:
            return self.weight(spec.dtype, data, *spec.shape)
        return self.constant(bytes(data), spec.dtype, spec.shape)

    @uninterrupted
    def weight(self, dtype: Type, data: bytes, *shape: Extents) -> Tensor:
        """Make a tensor with these bytes, which the device lays out as a model's weight.

        Raises
        ------
        ShapeError
            There are not as many bytes as the shape needs.
        """
        self._check()
        spec = Spec.dense(shape, dtype)
        _require_bytes("weight", spec, data)
        storage = self._executor.weight(spec, memoryview(data), "weight", alone=True)
        self._states.append(storage)
        return leaf(spec, storage, self._builder)

    def arange(self, start: float, stop: float, step: float = 1.0, dtype: Type = F32) -> Tensor:
        """Return values from `start` in steps, without `stop`; see `ops.shape.creation.arange`."""
        made = creation.arange.add_to(
            self._builder, start=start, stop=stop, step=step, dtype=as_dtype(dtype)
        )
        return cast("Tensor", made)

    def random_normal(
        self,
        shape: int | Sequence[Extents],
        dtype: Type = F32,
        *,
        loc: float = 0.0,
        scale: float = 1.0,
        key: int = 0,
    ) -> Tensor:
        """Return normally distributed numbers, the same for a key on every device.

        Parameters
        ----------
        dtype : DType
            f32, f16 or bf16.
        loc, scale : float
            Mean and standard deviation.
        key : int
            Other keys, other numbers.
        """
        made = creation.random_normal.add_to(
            self._builder,
            shape=extents("shape", shape),
            dtype=as_dtype(dtype),
            loc=loc,
            scale=scale,
            key=key,
        )
        return cast("Tensor", made)

    def constant(self, data: bytes, dtype: DType, shape: Sequence[int]) -> Tensor:
        """Make a tensor of a plain type; the caller has checked the number of bytes."""
        self._check()
        spec = Spec.dense(shape, dtype)
        return leaf(spec, Storage(spec.nbytes, "input", "", data), self._builder)

    # What ops call: see `wgpu_backend.graph.node.Builder`.

    def add(self, call: Call, launch: Launch) -> Tensor:
        """Return a node for the result of an op."""
        self._check()
        self._nodes += 1
        if self._nodes > self._max_nodes:
            raise ContextError(
                f"context: node {self._nodes}, it was made for {self._max_nodes}; "
                "use new_context_size for more"
            )
        # The result of a write is the storage that it writes.
        if launch.into is not None:
            return Tensor(launch.out, launch.into.storage, builder=self, call=call, launch=launch)
        storage = Storage(stored_nbytes(launch.out), "intermediate")
        return Tensor(launch.out, storage, builder=self, call=call, launch=launch)

    def view(self, source: Node, spec: Spec) -> Tensor:
        """Return a node that looks at the storage of another."""
        return Tensor(spec, source.storage, builder=self, source=source)

    def layer(self, index: int) -> LayerPlace:
        """Return the maker of one layer's states: on its device, and under its name in reports."""
        return LayerPlace(self, index)

    # Computing.

    def forward(self, *tensors: Tensor) -> Context:
        """Add tensors to the next `compute` or `record`, for the writes they do."""
        self._forward += tensors
        return self

    @uninterrupted
    def record(self, *outputs: Tensor, times: int = 1) -> Recorded:
        """Record the graph of these outputs, to be run many times with new inputs.

        Parameters
        ----------
        times : int
            How often one submit may run it, see `Recorded.replays`.
        """
        self._check()
        # Results are read as one range of bytes.
        whole = [t if _is_whole(t) else t.contiguous() for t in outputs]
        return self._executor.record([*whole, *self._take_forward(whole)], times=times)

    @uninterrupted
    def record_pausable(self, output: Tensor, *, at_once: bool = True) -> Pausable:
        """Record the graph of an output, whose runs other graphs may interrupt.

        Without `at_once`, the work is left to `Pausable.prepare`.
        """
        self._check()
        whole = output if _is_whole(output) else output.contiguous()
        return self._executor.record_pausable([whole], at_once=at_once)

    def compute(self, *tensors: Tensor) -> None:
        """Run the graph of these tensors; their values stay until the context closes."""
        self._run(tensors, lambda: None)

    def compute_with_notify(self, notify: Callable[[], None], *tensors: Tensor) -> None:
        """Run `compute`, and call `notify` when the work has been submitted to the device."""
        self._run(tensors, notify)

    @uninterrupted
    def _run(self, tensors: Sequence[Tensor], notify: Callable[[], None]) -> None:
        self._check()
        wanted = [*tensors, *self._take_forward(tensors)]
        # Inputs, weights and states have their values already.
        wanted = [t for t in wanted if t.storage.kind == "intermediate" or t.launch is not None]
        if not wanted:
            notify()
            return
        # Not in the shared slots: the results stay after the next graph has run.
        recorded = self._executor.record(wanted, shared=False, read=False)
        try:
            result = recorded.run({})
            notify()
            result.wait()
        except BaseException:
            recorded.close()
            raise
        self._keep(wanted, recorded)

    def set_batch_size(self, tokens: int) -> None:
        """Set the largest number of tokens in a batch; `reserve` and plans may use it."""
        if tokens < 1:
            raise ShapeError(f"set_batch_size: {tokens}, needs at least 1")
        self.batch_size = tokens

    @uninterrupted
    def reserve(self, *outputs: Tensor) -> int:
        """Record a graph without running it, so that its memory is allocated in advance.

        Parameters
        ----------
        outputs : Tensor
            Of the largest graph there will be.

        Returns
        -------
        int
            Bytes that its intermediates take.

        Raises
        ------
        OutOfMemory
            The tensors do not fit; the exception carries the memory report.
        """
        recorded = self.record(*outputs)
        nbytes = recorded.plan.peak_nbytes
        recorded.close()
        return nbytes

    def max_graph_nodes(self) -> int:
        """Return the number of nodes that the context may make."""
        return self._max_nodes

    def compare_with(
        self, path: str | Path, tensors: Mapping[str, Tensor], *, abort_on_error: bool = True
    ) -> list[Likeness]:
        """Compare tensors with the references of a safetensors file; see `ml.display.compare`."""
        return compare(path, tensors, abort_on_error=abort_on_error)

    @uninterrupted
    def values(self, tensor: Tensor) -> Array:
        """Return the values of a tensor on the host; compute them first if needed."""
        self._check()
        if tensor.storage.kind == "input" and isinstance(tensor.storage.handle, bytes):
            return _decode_constant(tensor)
        if tensor.storage.kind == "intermediate" or tensor.launch is not None:
            self.compute(tensor)
        return self._executor.read(tensor)

    def move(self, tensor: Tensor, device: str) -> Tensor:
        """Return a copy of a tensor on one of the context's devices; see `Tensor.to`."""
        executor, made = self._executor, copying.contiguous.add_to(self._builder, tensor)
        if isinstance(executor, PlacedExecutor):
            executor.pin(made.storage, device)
        elif device != executor.info.id:
            raise DeviceError(f"to: device {device!r}, the context has only {executor.info.id}")
        return cast("Tensor", made)

    @uninterrupted
    def assign(self, tensor: Tensor, data: bytes) -> None:
        """Put bytes into a constant, for graphs made from now on, or into a state.

        Raises
        ------
        ShapeError
            There are not as many bytes as the tensor has, or it is not dense.
        ContextError
            The tensor is the result of an op.
        """
        self._check()
        spec, storage = tensor.spec, tensor.storage
        if len(data) != spec.nbytes or not spec.is_dense:
            raise ShapeError(f"assign: {len(data)} bytes, a dense {spec.shape} has {spec.nbytes}")
        if storage.kind == "state" and tensor.launch is None:
            self._executor.write(tensor, data)
        elif storage.kind == "input" and len(data) == storage.nbytes and not storage.label:
            # A copy, since the caller may change its buffer.
            storage.handle = bytes(data)
        else:
            raise ContextError(f"assign: {spec.shape} is the result of an op or a named input")

    def _take_forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        # By identity: `in` would compare the values of tensors.
        given = {id(t) for t in tensors}
        forward = [n for n in self._forward if id(n) not in given]
        self._forward.clear()
        return forward  # pyright: ignore[reportReturnType]

    def _keep(self, nodes: Sequence[Node], recorded: Recorded) -> None:
        """Turn computed nodes into leaves, whose storage lives as long as the context."""
        kept = {n.storage for n in nodes if n.storage.kind == "intermediate"}
        for node in recorded.scheduled:
            if node.storage in kept or (node.launch and node.launch.into is not None):
                # Without a launch a node is a leaf, so later graphs do not compute it again.
                node.launch = node.call = None
        recorded.keep(list(kept))
        self._states += kept

    @uninterrupted
    def close(self) -> None:
        """Release the memory of the context's tensors; calling it again is harmless."""
        if self._closed:
            return
        self._closed = True
        for storage in self._states:
            self._executor.free(storage)
        self._states.clear()
        self.memo.clear()


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """The maker of one layer's states in a context, on the layer's device.

    Ops that read or write the states run there.
    """

    context: Context
    index: int

    def zeros(self, *shape: Extents, dtype: Type = F32) -> Tensor:
        """Make a tensor of zeros that ops may write into."""
        return self.context.state(shape, dtype, f"cache.{self.index}.state")

    def empty(self, *shape: Extents, dtype: Type = F32) -> Tensor:
        """Make a tensor for ops to write into; its values are zeros until then."""
        return self.zeros(*shape, dtype=dtype)


def _is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor is dense and begins where its storage does, as results do."""
    return tensor.spec.is_dense and tensor.spec.offset == 0


def _decode_constant(tensor: Tensor) -> Array:
    from wgpu_backend.ops.host_values import decode

    return decode(tensor.storage.handle, tensor.spec)


def _require(dtype: DType, condition: bool, subject: str, wanted: str) -> None:
    if not condition:
        raise DTypeError(f"{subject}: got {dtype}, needs {wanted}")


def _require_bytes(asked: str, spec: Spec, data: bytes) -> None:
    if len(data) != spec.nbytes:
        raise ShapeError(
            f"{asked} {spec.dtype} {spec.shape}: {len(data)} bytes, the shape needs {spec.nbytes}"
        )
