"""Context: where tensors of one graph are made, computed and kept until it closes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from wgpu_backend.device_info import DeviceInfo
from wgpu_backend.dtypes import BF16, F32, I32, QUANTISABLE, DType
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.graph.node import Call, Launch, Node, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.display import Likeness, compare
from wgpu_backend.ml.executor import Array, Executor, Recorded
from wgpu_backend.ml.planes import stored_nbytes
from wgpu_backend.ml.tensor import Tensor, leaf, shape_of
from wgpu_backend.ops import creation

MAX_GRAPH_NODES = 1 << 20


class Context:
    """Makes tensors and computes them.

    Use it as a context manager, or `close` it; closing gives back all device memory that its
    tensors hold.

    Parameters
    ----------
    executor : Executor
    max_nodes : int
        Ops that it may make.
    """

    def __init__(self, executor: Executor, max_nodes: int = MAX_GRAPH_NODES) -> None:
        self._executor = executor
        self._max_nodes = max_nodes
        self._nodes = 0
        self._forward: list[Node] = []
        self._states: list[Storage] = []
        self._closed = False
        self.batch_size = 1
        self.memo: dict[Any, Tensor] = {}

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def executor(self) -> Executor:
        """What holds the tensors' bytes and runs graphs."""
        return self._executor

    @property
    def device(self) -> DeviceInfo:
        """Device the tensors lie on."""
        return self._executor.info

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Context({self._executor.info.id}, {self._nodes} ops made{state})"

    # What ops call: see `wgpu_backend.graph.node.Builder`.

    def add(self, call: Call, launch: Launch) -> Tensor:
        """Node for the result of an op."""
        self._check()
        self._nodes += 1
        if self._nodes > self._max_nodes:
            raise ContextError(
                f"context: node {self._nodes}, it was made for {self._max_nodes}; "
                "ask new_context_size for more"
            )
        if launch.into is not None:
            return Tensor(launch.out, launch.into.storage, builder=self, call=call, launch=launch)
        storage = Storage(stored_nbytes(launch.out), "intermediate")
        return Tensor(launch.out, storage, builder=self, call=call, launch=launch)

    def view(self, source: Node, spec: Spec) -> Tensor:
        """Node that looks at the storage of another."""
        return Tensor(spec, source.storage, builder=self, source=source)

    # Leaves.

    def input(self, name: str, shape: Sequence[int], dtype: DType = F32) -> Tensor:
        """Tensor that a recorded graph gets anew on every run, by `name`."""
        self._check()
        _require(dtype, not dtype.quantised, f"input {name}", "a plain type; or use from_bytes")
        spec = Spec.dense(shape, dtype)
        return leaf(spec, Storage(spec.nbytes, "input", name, spec), self)

    def state(self, shape: Sequence[int], dtype: DType = F32, label: str = "state") -> Tensor:
        """Zeroed tensor that ops may write into, kept until the context closes.

        Raises
        ------
        DTypeError
            `dtype` is a block format that ops cannot write.
        """
        self._check()
        writable = not dtype.quantised or dtype in QUANTISABLE
        _require(dtype, writable, label, f"a plain type, {', '.join(map(str, QUANTISABLE))}")
        spec = Spec.dense(shape, dtype)
        storage = self._executor.state(spec, label)
        self._states.append(storage)
        return leaf(spec, storage, self)

    def zeros(self, *shape: int, dtype: DType = F32) -> Tensor:
        """Tensor of zeros."""
        return self.state(shape, dtype, "zeros")

    def empty(self, *shape: int, dtype: DType = F32) -> Tensor:
        """Tensor to be written by ops; its values are zeros until then."""
        return self.state(shape, dtype, "empty")

    def from_numpy(self, values: ArrayLike, dtype: DType | None = None) -> Tensor:
        """Tensor with the values of an array, converted to `dtype`.

        Parameters
        ----------
        values : array-like
        dtype : DType or None
            None keeps i32, and takes f32 for everything else.

        Raises
        ------
        DTypeError
            `dtype` is a block format: give its bytes to `from_bytes`.
        """
        array = np.asarray(values)
        wanted = dtype or (I32 if array.dtype.kind in "iu" else F32)
        if wanted.numpy is None or wanted == BF16:
            raise DTypeError(f"from_numpy: {wanted} has no NumPy type; give from_bytes its bytes")
        return self._constant(array.astype(wanted.numpy).tobytes(), wanted, array.shape)

    def from_floats(self, values: Sequence[float], *shape: int) -> Tensor:
        """f32 tensor with these values."""
        data = np.asarray(values, np.float32).tobytes()
        return self._constant(data, F32, shape_of(values, shape, "from_floats"))

    def from_ints(self, values: Sequence[int], *shape: int) -> Tensor:
        """i32 tensor with these values."""
        data = np.asarray(values, np.int32).tobytes()
        return self._constant(data, I32, shape_of(values, shape, "from_ints"))

    def from_bytes(self, dtype: DType, data: bytes, *shape: int) -> Tensor:
        """Tensor with these bytes as they are.

        Raises
        ------
        ShapeError
            There are not as many bytes as the shape needs.
        """
        spec = Spec.dense(shape, dtype)
        shape_of(data, (spec.nbytes,), f"from_bytes {dtype} {tuple(shape)}, in bytes")
        if dtype.quantised:
            return self.weight(dtype, data, *shape)
        return self._constant(bytes(data), dtype, shape)

    def weight(self, dtype: DType, data: bytes, *shape: int) -> Tensor:
        """Tensor with these bytes, which the device lays out as it does the weights of a model.

        Raises
        ------
        ShapeError
            There are not as many bytes as the shape needs.
        """
        self._check()
        spec = Spec.dense(shape, dtype)
        shape_of(data, (spec.nbytes,), f"weight {dtype} {tuple(shape)}, in bytes")
        storage = self._executor.weight(spec, memoryview(data), "weight", alone=True)
        self._states.append(storage)
        return leaf(spec, storage, self)

    def arange(self, start: float, stop: float, step: float = 1.0, dtype: DType = F32) -> Tensor:
        """Values from `start` in steps, up to and without `stop`; see `ops.creation.arange`."""
        made = creation.arange.added(self, start=start, stop=stop, step=step, dtype=dtype)
        return cast("Tensor", made)

    def random_normal(
        self,
        shape: Sequence[int],
        dtype: DType = F32,
        *,
        loc: float = 0.0,
        scale: float = 1.0,
        key: int = 0,
    ) -> Tensor:
        """Normally distributed numbers, the same for the same key on every device.

        Parameters
        ----------
        shape : sequence of int
        dtype : DType
            f32, f16 or bf16.
        loc, scale : float
            Mean and standard deviation.
        key : int
            Other keys, other numbers.
        """
        made = creation.random_normal.added(
            self, shape=tuple(shape), dtype=dtype, loc=loc, scale=scale, key=key
        )
        return cast("Tensor", made)

    def layer(self, index: int) -> LayerPlace:
        """Where caches of one layer are made, so that memory reports name it."""
        return LayerPlace(self, index)

    def _constant(self, data: bytes, dtype: DType, shape: Sequence[int]) -> Tensor:
        self._check()
        spec = Spec.dense(shape, dtype)
        return leaf(spec, Storage(spec.nbytes, "input", "", data), self)

    # Computing.

    def forward(self, *tensors: Tensor) -> Context:
        """Add tensors to what the next `compute` or `record` runs, for the writes they do."""
        self._forward += tensors
        return self

    def record(self, *outputs: Tensor, times: int = 1) -> Recorded:
        """Graph of these outputs, ready to run many times with other values of its inputs.

        Parameters
        ----------
        *outputs : Tensor
        times : int
            How often one submit may run it, see `Recorded.replays`.
        """
        self._check()
        whole = [t if _is_whole(t) else t.contiguous() for t in outputs]
        return self._executor.record([*whole, *self._taken(whole)], times=times)

    def compute(self, *tensors: Tensor) -> None:
        """Run the graph of these tensors; their values stay until the context closes."""
        self._run(tensors, lambda: None)

    def compute_with_notify(self, notify: Callable[[], None], *tensors: Tensor) -> None:
        """`compute`, with a call when the work has been handed to the device."""
        self._run(tensors, notify)

    def _run(self, tensors: Sequence[Tensor], notify: Callable[[], None]) -> None:
        self._check()
        wanted = [*tensors, *self._taken(tensors)]
        wanted = [t for t in wanted if t.storage.kind == "intermediate" or t.launch is not None]
        if not wanted:
            notify()
            return
        recorded = self._executor.record(wanted, shared=False)
        try:
            result = recorded.run({})
            notify()
            result.wait()
        except BaseException:
            recorded.close()
            raise
        self._keep(wanted, recorded)

    def set_batch_size(self, tokens: int) -> None:
        """Say how many tokens a batch has at most; `reserve` and plans may use it."""
        if tokens < 1:
            raise ShapeError(f"set_batch_size: {tokens}, needs at least 1")
        self.batch_size = tokens

    def reserve(self, *outputs: Tensor) -> int:
        """Record a graph without running it, so that its memory is there when it is needed.

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
            They do not fit; the exception carries the memory report.
        """
        recorded = self.record(*outputs)
        nbytes = recorded.plan.peak_nbytes
        recorded.close()
        return nbytes

    def max_graph_nodes(self) -> int:
        """Nodes that the context may make."""
        return self._max_nodes

    def compare_with(
        self, path: str | Path, tensors: Mapping[str, Tensor], *, abort_on_error: bool = True
    ) -> list[Likeness]:
        """Compare tensors with the references of a safetensors file; see `ml.display.compare`."""
        return compare(path, tensors, abort_on_error=abort_on_error)

    def values(self, tensor: Tensor) -> Array:
        """Values of a tensor on the host, computed first where they have not been."""
        self._check()
        if tensor.storage.kind == "input" and isinstance(tensor.storage.handle, bytes):
            return _host(tensor)
        if tensor.storage.kind == "intermediate" or tensor.launch is not None:
            self.compute(tensor)
        return self._executor.read(tensor)

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
            storage.handle = bytes(data)
        else:
            raise ContextError(f"assign: {spec.shape} is the result of an op or a named input")

    def _taken(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        forward = [n for n in self._forward if n not in tensors]
        self._forward.clear()
        return forward  # pyright: ignore[reportReturnType]

    def _keep(self, nodes: Sequence[Node], recorded: Recorded) -> None:
        """Turn computed nodes into leaves, whose storage lives as long as the context."""
        kept = {n.storage for n in nodes if n.storage.kind == "intermediate"}
        for node in recorded.scheduled:
            if node.storage in kept or (node.launch and node.launch.into is not None):
                node.launch = node.call = None
        recorded.keep(list(kept))
        self._states += kept

    def close(self) -> None:
        """Give back what the context's tensors hold; again is harmless."""
        if self._closed:
            return
        self._closed = True
        for storage in self._states:
            self._executor.free(storage)
        self._states.clear()
        self.memo.clear()

    def _check(self) -> None:
        if self._closed:
            raise ContextError("context: it is closed; make a new one")


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Makes the states of one layer in a context."""

    context: Context
    index: int

    def zeros(self, *shape: int, dtype: DType = F32) -> Tensor:
        """Tensor of zeros that ops may write into."""
        return self.context.state(shape, dtype, f"cache.{self.index}.state")

    def empty(self, *shape: int, dtype: DType = F32) -> Tensor:
        """Tensor to be written by ops; its values are zeros until then."""
        return self.zeros(*shape, dtype=dtype)


def _require(dtype: DType, condition: bool, subject: str, wanted: str) -> None:
    if not condition:
        raise DTypeError(f"{subject}: got {dtype}, needs {wanted}")


def _is_whole(tensor: Tensor) -> bool:
    """Whether a tensor's values begin its storage and follow each other, as results are read."""
    return tensor.spec.is_dense and tensor.spec.offset == 0


def _host(tensor: Tensor) -> Array:
    from wgpu_backend.cpu.values import decode

    return decode(tensor.storage.handle, tensor.spec)
