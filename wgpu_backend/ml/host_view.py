"""A tensor as the host sees it: its shape, and its values in and out."""

from __future__ import annotations

import builtins
from collections.abc import MutableMapping, Sequence
from typing import Any, Protocol, Self, TypeVar, cast

from numpy.typing import ArrayLike, DTypeLike

from wgpu_backend.dtypes import BF16, DType, held
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ml.display import as_html, dump
from wgpu_backend.ml.executor import Array
from wgpu_backend.ops.constants import as_array

T = TypeVar("T")


class Owner(Protocol[T]):
    """The context of a tensor, as far as the tensor uses it; see `ml.context.Context`."""

    memo: MutableMapping[Any, T]

    def from_numpy(self, values: ArrayLike, dtype: DType | None = None) -> T:
        """Return a tensor with the values of an array."""
        ...

    def values(self, tensor: T) -> Array:
        """Return the values of a tensor on the host."""
        ...

    def assign(self, tensor: T, data: builtins.bytes) -> None:
        """Put bytes into a constant or a state."""
        ...


class HostView(Node):
    """A node with its values."""

    __slots__ = ()

    @property
    def shape(self) -> Shape:
        """The extents, the contiguous axis last."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.spec.dtype

    @property
    def strides(self) -> Shape:
        """The elements from one value to the next along each axis."""
        return self.spec.strides

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.spec.size

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.spec.shape)

    def owner(self) -> Owner[HostView]:
        """Return the context the tensor belongs to; ContextError for a weight, which has none."""
        if self.builder is None:
            raise ContextError(f"{self.storage.label}: a weight belongs to no context")
        return cast("Owner[HostView]", self.builder)

    def __repr__(self) -> str:
        label = f", {self.storage.label}" if self.storage.label else ""
        return f"Tensor({self.shape}, {self.dtype}{label})"

    def dim(self, axis: int) -> int:
        """Return the extent of an axis."""
        return self.shape[self.spec.axis(axis, "dim")]

    def stride(self, axis: int) -> int:
        """Return the elements from one value to the next along an axis."""
        return self.strides[self.spec.axis(axis, "stride")]

    def numpy(self) -> Array:
        """Return the values on the host; compute them first if needed.

        Returns
        -------
        ndarray
            bf16 and block formats come as f32.
        """
        return self.owner().values(self)

    def backend_get(self) -> Array:
        """Return `numpy()`, under the name that Ollama's interface has for weights."""
        return self.numpy()

    def item(self) -> bool | int | float | complex:
        """Return the value of a tensor of one element.

        Raises
        ------
        ShapeError
            There is not one value.
        """
        return self._one("item", "numpy() and tolist() give all")

    def tolist(self) -> Any:  # noqa: ANN401
        """Return the values as nested lists, one level for each axis; a number without axes."""
        return self.numpy().tolist()

    def _one(self, asked: str, remedy: str) -> Any:  # noqa: ANN401
        if self.size != 1:
            raise ShapeError(f"{asked}: {self.shape} has {self.size} values, needs 1; {remedy}")
        return self.numpy().item()

    def __bool__(self) -> bool:
        return bool(self._one("bool", "numpy().any() or .all() says what is meant"))

    def __float__(self) -> float:
        return float(self._one("float", "numpy() and floats() give all"))

    def __int__(self) -> int:
        return int(self._one("int", "numpy() and ints() give all"))

    def floats(self) -> list[float]:
        """Return the values on the host, in row-major order."""
        return [float(v) for v in self.numpy().reshape(-1)]

    def ints(self) -> list[int]:
        """Return the values on the host as integers, in row-major order."""
        return [int(v) for v in self.numpy().reshape(-1)]

    def bytes(self) -> builtins.bytes:
        """Return the values' bytes on the host, in row-major order; block formats as f32."""
        return self.numpy().tobytes()

    def from_floats(self, values: Sequence[float]) -> Self:
        """Put numbers into a constant or a state, converted to its type; return the tensor."""
        return self._assign("from_floats", values)

    def from_ints(self, values: Sequence[int]) -> Self:
        """Put integers into a constant or a state, converted to its type; return the tensor."""
        return self._assign("from_ints", values)

    def from_bytes(self, data: builtins.bytes) -> Self:
        """Put bytes into a constant or a state unchanged; return the tensor.

        Raises
        ------
        ShapeError
            There are not as many bytes as the tensor has.
        """
        self.owner().assign(self, data)
        return self

    def _assign(self, asked: str, values: Sequence[float]) -> Self:
        if self.dtype.numpy is None or self.dtype == BF16:
            raise DTypeError(f"{asked}: {self.dtype} has no NumPy type; give from_bytes its bytes")
        return self.from_bytes(held(asked, as_array(asked, values), self.dtype).tobytes())

    def dump(self, *, precision: int = 4, threshold: int = 1000, edge_items: int = 3) -> str:
        """Return the values as nested brackets; compute them first if needed.

        Parameters
        ----------
        precision : int
            Digits after the point.
        threshold : int
            Tensors of more elements are shortened.
        edge_items : int
            Values shown at each end of a shortened axis.
        """
        return dump(self.numpy(), precision=precision, threshold=threshold, edge_items=edge_items)

    def _repr_html_(self) -> str:
        done = self.builder is not None and self.launch is None and self.source is None
        return as_html(repr(self), self.numpy() if done else None)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:  # noqa: ANN401
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the host's memory: values are copied there
