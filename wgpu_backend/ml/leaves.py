"""Tensors made of shapes and values alone: inputs, states, constants, arange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.dtypes import BF16, F32, I32, QUANTISABLE, DType, dtype_of, held
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.graph.node import Builder, Storage
from wgpu_backend.graph.spec import Extents, Spec, extents
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor, leaf, shape_of
from wgpu_backend.ops.constants import as_array, default_dtype
from wgpu_backend.ops.shape import creation

Type = DType | str | np.dtype[Any] | type[np.generic]  # see `wgpu_backend.dtypes.dtype_of`


class Leaves:
    """The methods of a context that make tensors, see `wgpu_backend.ml.context.Context`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._states: list[Storage] = []
        self._closed = False

    @property
    def _builder(self) -> Builder:
        return cast("Builder", self)

    def _check(self) -> None:
        if self._closed:
            raise ContextError("context: it is closed; make a new one")

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
            See `wgpu_backend.dtypes.dtype_of`; so wherever a type is named.
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
        return self._converted("from_numpy", values, None if dtype is None else dtype_of(dtype))

    def from_floats(self, values: Sequence[float], *shape: Extents) -> Tensor:
        """Make an f32 tensor with these values; DTypeError if one is beyond f32."""
        return self._converted("from_floats", values, F32, shape)

    def from_ints(self, values: Sequence[int], *shape: Extents) -> Tensor:
        """Make an i32 tensor with these values; DTypeError if one is not an i32."""
        return self._converted("from_ints", values, I32, shape)

    def _converted(
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
        data = held(asked, array, wanted).tobytes()
        found = array.shape if shape is None else shape_of(array.size, shape, asked)
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
        made = creation.arange.added(
            self._builder, start=start, stop=stop, step=step, dtype=dtype_of(dtype)
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
        made = creation.random_normal.added(
            self._builder,
            shape=extents("shape", shape),
            dtype=dtype_of(dtype),
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


def _require(dtype: DType, condition: bool, subject: str, wanted: str) -> None:
    if not condition:
        raise DTypeError(f"{subject}: got {dtype}, needs {wanted}")


def _require_bytes(asked: str, spec: Spec, data: bytes) -> None:
    if len(data) != spec.nbytes:
        raise ShapeError(
            f"{asked} {spec.dtype} {spec.shape}: {len(data)} bytes, the shape needs {spec.nbytes}"
        )
