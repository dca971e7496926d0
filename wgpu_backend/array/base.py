"""The base of arrays: a node of a session, and its values on the host.

Functions of this package make arrays with `wrap`, and test for them with `ArrayBase`. The public
class is `arrays.Array`, which adds operators and methods. These are the same functions, so the
class is defined after them, and `wrap` looks it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import DTypeLike

from wgpu_backend.array import devices
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.session import Session, is_done
from wgpu_backend.array.types import default_dtype
from wgpu_backend.dtypes import BF16, DType, as_dtype, convert_values, f32_to_bf16
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ml.display import as_html
from wgpu_backend.ml.executor import Array as HostArray
from wgpu_backend.ops.constants import as_array

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

# The class that `wrap` makes: `arrays.Array`, once it is defined.
_kind: list[type[ArrayBase]] = []


class ArrayBase:
    """A node with its session.

    Attributes
    ----------
    kept : bool
        `sweep` does not free it.
    """

    # Sessions hold arrays by weak references, which need a slot of their own.
    __slots__ = ("__weakref__", "_node", "kept")

    def __init__(self, values: Any, dtype: Any = None, *, device: object = None) -> None:
        self._node: Node | None = None
        self.kept = False
        self.node = make_node(values, None if dtype is None else as_dtype(dtype), device)

    def __init_subclass__(cls) -> None:
        _kind[:] = [cls]

    @classmethod
    def looking_at(cls, node: Node) -> Self:
        """Return an array of a node; see `wrap`."""
        # Not `__init__`, which would convert values.
        made = object.__new__(cls)
        made._node, made.kept = None, False
        made.node = node
        return made

    @property
    def node(self) -> Node:
        """The node of the array's values.

        Raises
        ------
        ContextError
            The array was freed.
        """
        if self._node is None:
            raise ContextError("array: it was freed; make it again, or keep it before the sweep")
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        self._node = node
        self.session.enter(self)

    @property
    def session(self) -> Session:
        """The session that computes the array."""
        return cast("Session", self.node.builder)

    def free(self) -> None:
        """Release the array's values; using it afterwards is an error."""
        if self._node is not None:
            self.session.leave(self)
        self._node = None
        self.kept = False

    # Shape, type and place.

    @property
    def shape(self) -> Shape:
        """Extents, the contiguous axis last."""
        return self.node.spec.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.node.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.node.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.node.spec.size

    @property
    def nbytes(self) -> int:
        """Bytes of the array's values."""
        return self.node.spec.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one value; of a block, for block formats."""
        return self.dtype.block_nbytes

    @property
    def device(self) -> DeviceInfo:
        """Device that holds the values."""
        return self.session.executor.info

    @property
    def is_evaluated(self) -> bool:
        """True if the array's values have been computed, or are being computed."""
        return self._node is not None and is_done(self._node)

    # Values.

    def numpy(self) -> HostArray:
        """Return the values on the host, computed first if necessary; bf16 comes as f32."""
        return self.session.values(self.node)

    def item(self) -> Any:
        """Return the value of an array with one element; ShapeError for other sizes."""
        if self.size != 1:
            raise ShapeError(
                f"item: {self.shape} has {self.size} values, needs 1; tolist gives all"
            )
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return the values as lists in lists; a number where there is no axis."""
        return self.numpy().tolist()

    def _scalar(self, asked: str) -> Any:
        if self.ndim and self.size != 1:
            raise ShapeError(
                f"{asked}: {self.shape} has {self.size} values, needs 1; use any() or all()"
            )
        return self.item()

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        value = self._scalar("index")
        # A bool is an int of Python, but as an index it is a mask.
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"index: an array of {self.dtype}, needs integers")
        return value

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len: an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        # A debugger that shows the array must not raise.
        if self._node is None:
            return "array(freed)"
        values = np.array2string(self.numpy(), separator=", ", prefix="array(", threshold=100)
        return f"array({values}, dtype={self.dtype})"

    def _repr_html_(self) -> str:
        head = f"array({self.shape}, {self.dtype})"
        # A notebook that shows the array does not compute it.
        return as_html(head, self.numpy() if self.is_evaluated else None)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> HostArray:
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return a capsule of a copy on the host."""
        options |= {"copy": copy} if copy is not None else {}
        return self.numpy().__dlpack__(max_version=max_version, dl_device=dl_device, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        # kDLCPU, device 0: values are copied to the host.
        return (1, 0)


def wrap(node: Node) -> Array:
    """Return an array of a node."""
    return cast("Array", _kind[0].looking_at(node))


def make_node(values: Any, dtype: DType | None = None, device: object = None) -> Node:
    """Return the node of an array, or of values uploaded from the host.

    Raises
    ------
    DTypeError, ShapeError
        They are not numbers, do not fit the type, or lists have rows of several lengths.
    """
    if isinstance(values, ArrayBase):
        return values.node if dtype is None else convert(values.node, dtype)
    found = devices.on(device)
    host = _gather(values)
    wanted = dtype or _own_dtype(host, values)
    return constant(found, host, wanted)


def constant(session: Session, host: HostArray, dtype: DType) -> Node:
    """Return a node of host values, converted to a type."""
    if dtype.numpy is None:
        raise DTypeError(f"array: {dtype} has blocks, needs a plain type; quantize makes blocks")
    if dtype == BF16:
        # NumPy has no bfloat16.
        stored = f32_to_bf16(convert_values("array", host, as_dtype("f32")))
    else:
        stored = convert_values("array", host, dtype)
    return session.constant(np.ascontiguousarray(stored).tobytes(), dtype, host.shape)


def _gather(values: Any) -> HostArray:
    """Return values on the host; lists may have arrays among them."""
    if isinstance(values, list | tuple):
        values = [_gather(v) if isinstance(v, list | tuple | ArrayBase) else v for v in values]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(values, ArrayBase):
        return values.numpy()
    return as_array("array", values)


def _own_dtype(host: HostArray, values: Any) -> DType:
    """Return NumPy's own type, or the default type of Python's numbers."""
    # NumPy gives lists of Python's numbers 64 bits, which GPUs do not have: those get the defaults.
    if isinstance(values, np.ndarray | np.generic):
        return as_dtype(host.dtype)
    return default_dtype(host.dtype)
