"""The Tensor: a node with its Context, with every op as a method.

Shapes are row-major: ``shape[-1]`` is contiguous in a dense tensor. Ops make nodes; values are
computed by `Context.compute` or when the host reads them.

The class has five chapters: shape and context, values on the host, views, operators, and ops.
"""

from __future__ import annotations

import builtins
import inspect
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from itertools import accumulate
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    cast,
    overload,
)

from numpy.typing import ArrayLike, DTypeLike

from wgpu_backend.dtypes import BF16, F32, I32, DType, convert_values
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Builder, Node, Storage
from wgpu_backend.graph.spec import Extents, Shape, Spec
from wgpu_backend.ml.display import as_html, dump
from wgpu_backend.ml.executor import Array
from wgpu_backend.ml.indexing import index_spec
from wgpu_backend.ops.attention import dot_product, paged, position
from wgpu_backend.ops.attention.options import POSITION_AXES, RopeOptions
from wgpu_backend.ops.check import FLOATS, describe
from wgpu_backend.ops.constants import as_array, is_numbers
from wgpu_backend.ops.conv import (
    columns,
    convolution,
    padding,
    pooling,
    resampling,
    resizing,
    timesteps,
    transposed,
)
from wgpu_backend.ops.elementwise import (
    activation,
    arithmetic,
    bitwise,
    clamp,
    comparison,
    float_bits,
    rounding,
    transcendental,
)
from wgpu_backend.ops.index import accumulating, compacting, indexing, scatter, taking, writing
from wgpu_backend.ops.linear import linear, outer, products
from wgpu_backend.ops.moe import experts, route, sparse_mixer
from wgpu_backend.ops.recurrent import head_scans, short_convolution, ssm
from wgpu_backend.ops.reduce import group_norm, norm, reduction, scan
from wgpu_backend.ops.sampling import sampling, searching, sorting
from wgpu_backend.ops.shape import copying, fill, moving, shaping, triangular

P = ParamSpec("P")
# A tensor, number or array-like. Ops refuse anything else by name.
Operand = Any
# The graph's types in signatures of ops, and those that callers of methods see.
_TYPES = {"Node": "Tensor", "Launch": "Tensor"}


class Owner(Protocol):
    """The context of a tensor, as far as the tensor uses it; see `ml.context.Context`."""

    memo: MutableMapping[Any, Tensor]

    def from_numpy(self, values: ArrayLike, dtype: DType | None = None) -> Tensor:
        """Return a tensor with the values of an array."""
        ...

    def values(self, tensor: Tensor) -> Array:
        """Return the values of a tensor on the host."""
        ...

    def assign(self, tensor: Tensor, data: builtins.bytes) -> None:
        """Put bytes into a constant or a state."""
        ...

    def move(self, tensor: Tensor, device: str) -> Tensor:
        """Return a copy of a tensor on a device."""
        ...


def make_method(op: Callable[..., Any], owner: type, name: str) -> Callable[..., Any]:
    """Return a plain function that calls an op with the tensor as its first operand.

    Python binds it without any code of ours, as graphs call thousands.

    Parameters
    ----------
    owner : type
        Class that it becomes a method of, by this name.
    """

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return op(self, *args, **kwargs)

    first, signature = _signature(op)
    call.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    call.__name__, call.__qualname__ = name, f"{owner.__qualname__}.{name}"
    call.__module__ = owner.__module__
    call.__doc__ = f"{inspect.getdoc(op) or ''}\n\nThe tensor itself is `{first}`."
    return call


def _signature(op: Callable[..., Any]) -> tuple[str, inspect.Signature]:
    """Return the name of the op's first operand, and its signature with `self` in that place."""
    found = inspect.signature(op)
    first, *rest = found.parameters.values()
    own = first.replace(name="self", annotation=first.empty)
    parameters = [p.replace(annotation=_publish(p.annotation)) for p in rest]
    seen = found.replace(parameters=[own, *parameters], return_annotation="Tensor")
    return first.name, seen


def _publish(annotation: Any) -> Any:  # noqa: ANN401
    """Replace the graph's types in an annotation by those that callers see."""
    if not isinstance(annotation, str):
        return annotation
    for inner, public in _TYPES.items():
        annotation = annotation.replace(inner, public)
    return annotation


class Method(Generic[P]):
    """An op, or a function made of ops, as a method: its first operand is the tensor."""

    def __init__(self, op: Callable[Concatenate[Node, P], Node]) -> None:
        self._op = op

    def __set_name__(self, owner: type, name: str) -> None:
        # A plain function, so that help() shows the op's signature.
        setattr(owner, name, make_method(self._op, owner, name))

    if TYPE_CHECKING:

        @overload
        def __get__(self, tensor: None, owner: type) -> Callable[Concatenate[Node, P], Node]: ...
        @overload
        def __get__(self, tensor: Tensor, owner: type) -> Callable[P, Tensor]: ...
        def __get__(self, tensor: Tensor | None, owner: type) -> Any: ...


class Tensor(Node):
    """An array on a device, computed when its values are needed.

    Operators take a number, a list or a NumPy array as the other operand; a number takes the type
    of the tensor. ``==`` compares values and makes a tensor of bool; use ``is`` to compare
    identity. Tensors are hashed by identity.
    """

    __slots__ = ("__weakref__",)

    # Shape and context.

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

    @property
    def context(self) -> Owner:
        """The context the tensor belongs to.

        Raises
        ------
        ContextError
            It is a weight, which belongs to the backend.
        """
        if self.builder is None:
            raise ContextError(f"{self.storage.label}: a weight belongs to no context")
        return cast("Owner", self.builder)

    def __repr__(self) -> str:
        label = f", {self.storage.label}" if self.storage.label else ""
        return f"Tensor({self.shape}, {self.dtype}{label})"

    def dim(self, axis: int) -> int:
        """Return the extent of an axis."""
        return self.shape[self.spec.axis(axis, "dim")]

    def stride(self, axis: int) -> int:
        """Return the elements from one value to the next along an axis."""
        return self.strides[self.spec.axis(axis, "stride")]

    # Values on the host, and from it.

    def numpy(self) -> Array:
        """Return the values on the host; compute them first if needed.

        Returns
        -------
        ndarray
            bf16 and block formats come as f32.
        """
        return self.context.values(self)

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
        self.context.assign(self, data)
        return self

    def _assign(self, asked: str, values: Sequence[float]) -> Self:
        if self.dtype.numpy is None or self.dtype == BF16:
            raise DTypeError(f"{asked}: {self.dtype} has no NumPy type; give from_bytes its bytes")
        return self.from_bytes(convert_values(asked, as_array(asked, values), self.dtype).tobytes())

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
        # Showing a tensor in a notebook computes nothing.
        done = self.builder is not None and self.launch is None and self.source is None
        return as_html(repr(self), self.numpy() if done else None)

    # NumPy leaves an operator between an array and a tensor to the tensor.
    __array_ufunc__: ClassVar[None] = None

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:  # noqa: ANN401
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        # DLPack's device type 1 is the host's memory: values are copied there.
        return (1, 0)

    def to(self, device: str) -> Tensor:
        """Return a copy of the tensor on a device, where ops then use it.

        A graph runs on several devices if its model was loaded with several. Results of ops go
        where they are read by themselves; `to` is for states, and to choose the device of an op.

        Parameters
        ----------
        device : str
            The id of one of the context's devices, as ``vulkan:0``.

        Raises
        ------
        DeviceError
            The context has no such device.
        """
        return self.context.move(self, device)

    # Views.

    def _view(self, spec: Spec) -> Tensor:
        if self.builder is None:
            # A weight belongs to no context, and neither do views of it.
            return self.beside(spec)
        return cast("Tensor", self.builder.view(self, spec))

    def beside(self, spec: Spec) -> Tensor:
        """Return a view of a tensor; the view belongs to no context."""
        return Tensor(spec, self.storage, source=self)

    @property
    def T(self) -> Tensor:
        """A view with the axes reversed."""
        return self.transpose()

    def reshape(self, *shape: Extents) -> Tensor:
        """Return the values under another shape; one extent may be -1. Copies if needed."""
        found = specs.reshape(self.spec, shape)
        return self._view(found) if found else self.contiguous().reshape(*shape)

    def permute(self, *order: Extents) -> Tensor:
        """Return a view with axes in another order: axis ``order[i]`` becomes axis i."""
        return self._view(specs.permute(self.spec, order))

    def transpose(self, *order: Extents) -> Tensor:
        """Return `permute`, with the axes reversed when no order is given."""
        return self.permute(*(order or range(len(self.shape) - 1, -1, -1)))

    def slice(self, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
        """Return a view of `start` to `stop` of one axis, every `step`-th value."""
        return self._view(specs.slice_axis(self.spec, axis, start, stop, step))

    def chunk(self, axis: int, size: int) -> list[Tensor]:
        """Split an axis into views of `size` values each; the last may be shorter."""
        extent, (size,) = self.dim(axis), specs.extents("chunk", (size,))
        if size < 1:
            raise ShapeError(f"chunk: {size} values each, needs at least 1")
        return [self.slice(axis, i, min(i + size, extent)) for i in range(0, extent, size)]

    def chunk_sections(self, axis: int, *sections: Extents) -> list[Tensor]:
        """Split an axis into views of these numbers of values, which add up to its extent."""
        counts = specs.extents("chunk_sections", sections)
        if sum(counts) != self.dim(axis):
            raise ShapeError(
                f"chunk_sections: sections add up to {sum(counts)}, axis {axis} has "
                f"{self.dim(axis)} values"
            )
        ends = accumulate(counts)
        return [self.slice(axis, e - n, e) for e, n in zip(ends, counts, strict=True)]

    def __getitem__(self, index: Any) -> Tensor:  # noqa: ANN401
        """Return a view by integers, slices with positive steps, ``...`` and None, as in NumPy."""
        return self._view(index_spec(self.spec, index))

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(self.dim(0)))

    def __len__(self) -> int:
        return self.dim(0)

    # Python's operators.

    # Defining `__eq__` would remove it.
    __hash__ = Node.__hash__

    def __add__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.add, self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.add, self, other)

    def __sub__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.sub, self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        # One `scale` needs no constant on the device.
        if isinstance(other, int | float) and self.dtype in FLOATS:
            return cast("Tensor", arithmetic.scale(self, factor=-1.0, bias=other))
        return _apply(arithmetic.sub, other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.mul, self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.mul, self, other)

    def __truediv__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.div, self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.div, other, self)

    def __floordiv__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.floor_divide, self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.floor_divide, other, self)

    def __mod__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.remainder, self, other)

    def __rmod__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.remainder, other, self)

    def __lshift__(self, other: Operand) -> Tensor:
        return _apply(bitwise.left_shift, self, other)

    def __rlshift__(self, other: Operand) -> Tensor:
        return _apply(bitwise.left_shift, other, self)

    def __rshift__(self, other: Operand) -> Tensor:
        return _apply(bitwise.right_shift, self, other)

    def __rrshift__(self, other: Operand) -> Tensor:
        return _apply(bitwise.right_shift, other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.power, self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return _apply(arithmetic.power, other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return _apply(products.matmul, self, self._matrix(other))

    def __rmatmul__(self, other: Operand) -> Tensor:
        return _apply(products.matmul, self._matrix(other), self)

    def _matrix(self, other: Operand) -> Operand:
        if isinstance(other, Node):
            return other
        if not is_numbers(other):
            raise DTypeError(f"matmul: got {describe(other)}, needs a tensor or an array")
        return self.context.from_numpy(other, F32)

    def __neg__(self) -> Tensor:
        return _apply(arithmetic.neg, self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return _apply(arithmetic.abs, self)

    def __invert__(self) -> Tensor:
        return _apply(bitwise.bitwise_not, self)

    def __and__(self, other: Operand) -> Tensor:
        return _apply(bitwise.bitwise_and, self, other)

    def __or__(self, other: Operand) -> Tensor:
        return _apply(bitwise.bitwise_or, self, other)

    def __xor__(self, other: Operand) -> Tensor:
        return _apply(bitwise.bitwise_xor, self, other)

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    # Comparison with another type than numbers and tensors gives False, as in Python.

    def __eq__(self, other: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not _comparable(other):
            return NotImplemented
        return _apply(comparison.equal, self, other)

    def __ne__(self, other: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not _comparable(other):
            return NotImplemented
        return _apply(comparison.not_equal, self, other)

    def __lt__(self, other: Operand) -> Tensor:
        return _apply(comparison.less, self, other)

    def __le__(self, other: Operand) -> Tensor:
        return _apply(comparison.less_equal, self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return _apply(comparison.greater, self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return _apply(comparison.greater_equal, self, other)

    # Ops, and functions made of ops.

    add = Method(arithmetic.add)
    sub = Method(arithmetic.sub)
    mul = Method(arithmetic.mul)
    div = Method(arithmetic.div)
    power = Method(arithmetic.power)
    maximum = Method(arithmetic.maximum)
    minimum = Method(arithmetic.minimum)
    scale = Method(arithmetic.scale)
    equal = Method(comparison.equal)
    not_equal = Method(comparison.not_equal)
    less = Method(comparison.less)
    less_equal = Method(comparison.less_equal)
    greater = Method(comparison.greater)
    greater_equal = Method(comparison.greater_equal)
    logical_and = Method(comparison.logical_and)
    logical_or = Method(comparison.logical_or)
    logical_xor = Method(comparison.logical_xor)
    logical_not = Method(comparison.logical_not)
    where = Method(comparison.where)
    mulmat = Method(linear.mulmat)
    mulmat_full_prec = Method(linear.mulmat_full_prec)
    linear = Method(linear.linear_layer)
    rms_norm = Method(norm.rms_norm)
    layer_norm = Method(norm.layer_norm)
    group_norm = Method(group_norm.group_norm)
    softmax = Method(norm.softmax)
    silu = Method(activation.silu)
    gelu = Method(activation.gelu)
    gelu_erf = Method(activation.gelu_erf)
    quick_gelu = Method(activation.quick_gelu)
    relu = Method(activation.relu)
    sqr = Method(arithmetic.sqr)
    sqrt = Method(arithmetic.sqrt)
    exp = Method(transcendental.exp)
    log = Method(transcendental.log)
    neg = Method(arithmetic.neg)
    abs = Method(arithmetic.abs)
    sign = Method(arithmetic.sign)
    sin = Method(transcendental.sin)
    cos = Method(transcendental.cos)
    softplus = Method(activation.softplus)
    expm1 = Method(transcendental.expm1)
    exp2 = Method(transcendental.exp2)
    log1p = Method(transcendental.log1p)
    log2 = Method(transcendental.log2)
    log10 = Method(transcendental.log10)
    rsqrt = Method(arithmetic.rsqrt)
    reciprocal = Method(arithmetic.reciprocal)
    tan = Method(transcendental.tan)
    asin = Method(transcendental.asin)
    acos = Method(transcendental.acos)
    atan = Method(transcendental.atan)
    sinh = Method(transcendental.sinh)
    cosh = Method(transcendental.cosh)
    asinh = Method(transcendental.asinh)
    acosh = Method(transcendental.acosh)
    atanh = Method(transcendental.atanh)
    erf = Method(transcendental.erf)
    erfinv = Method(transcendental.erfinv)
    atan2 = Method(transcendental.atan2)
    hypot = Method(transcendental.hypot)
    logaddexp = Method(transcendental.logaddexp)
    floor = Method(rounding.floor)
    ceil = Method(rounding.ceil)
    trunc = Method(rounding.trunc)
    round = Method(rounding.round)
    isnan = Method(float_bits.isnan)
    isinf = Method(float_bits.isinf)
    isfinite = Method(float_bits.isfinite)
    signbit = Method(float_bits.signbit)
    copysign = Method(float_bits.copysign)
    nextafter = Method(float_bits.nextafter)
    floor_divide = Method(arithmetic.floor_divide)
    remainder = Method(arithmetic.remainder)
    bitwise_and = Method(bitwise.bitwise_and)
    bitwise_or = Method(bitwise.bitwise_or)
    bitwise_xor = Method(bitwise.bitwise_xor)
    bitwise_not = Method(bitwise.bitwise_not)
    left_shift = Method(bitwise.left_shift)
    right_shift = Method(bitwise.right_shift)
    relu6 = Method(activation.relu6)
    relu_squared = Method(activation.relu_squared)
    hardsigmoid = Method(activation.hardsigmoid)
    hardswish = Method(activation.hardswish)
    selu = Method(activation.selu)
    elu = Method(activation.elu)
    celu = Method(activation.celu)
    leaky_relu = Method(activation.leaky_relu)
    hard_shrink = Method(activation.hard_shrink)
    softshrink = Method(activation.softshrink)
    step = Method(activation.step)
    hardtanh = Method(clamp.hardtanh)
    prelu = Method(activation.prelu)
    softsign = Method(activation.softsign)
    mish = Method(activation.mish)
    log_sigmoid = Method(activation.log_sigmoid)
    clamp = Method(clamp.clamp)
    fill = Method(fill.fill)
    sum = Method(reduction.sum)
    sum_rows = Method(reduction.sum_rows)
    mean = Method(reduction.mean)
    variance = Method(reduction.variance)
    stddev = Method(reduction.stddev)
    prod = Method(reduction.prod)
    logsumexp = Method(reduction.logsumexp)
    any = Method(reduction.any)
    all = Method(reduction.all)
    max = Method(reduction.max)
    min = Method(reduction.min)
    l2_norm = Method(reduction.l2_norm)
    cumsum = Method(scan.cumsum)
    cumprod = Method(scan.cumprod)
    cummax = Method(scan.cummax)
    cummin = Method(scan.cummin)
    logcumsumexp = Method(scan.logcumsumexp)
    pad = Method(shaping.pad)
    pad_ext = Method(shaping.pad_ext)
    repeat = Method(shaping.repeat)
    repeat_4d = Method(shaping.repeat_4d)
    stack = Method(shaping.stack)
    as_strided = Method(shaping.as_strided)
    view = Method(shaping.view)
    duplicate = Method(copying.contiguous)
    take_axes = Method(taking.take_axes)
    take_along_axis = Method(taking.take_along_axis)
    copy = Method(writing.copy)
    set_inplace = Method(writing.set_inplace)
    slice_update = Method(writing.slice_update)
    slice_update_dynamic = Method(scatter.slice_update_dynamic)
    put_along_axis = Method(scatter.put_along_axis)
    fold_at = Method(accumulating.fold_at)
    fold_along_axis = Method(accumulating.fold_along_axis)
    count_true = Method(compacting.count_true)
    compact = Method(compacting.compact)
    scatter = Method(scatter.scatter)
    roll = Method(moving.roll)
    tile = Method(moving.tile)
    repeat_each = Method(moving.repeat_each)
    diagonal = Method(moving.diagonal)
    tri = Method(triangular.tri)
    tril = Method(triangular.tril)
    triu = Method(triangular.triu)
    diag = Method(triangular.diag)
    solve_tri = Method(triangular.solve_tri)
    argsort = Method(sorting.argsort)
    sort = Method(sorting.sort)
    top_k = Method(sorting.top_k)
    topk = Method(sorting.topk)
    searchsorted = Method(searching.searchsorted)
    tanh = Method(activation.tanh)
    sigmoid = Method(activation.sigmoid)
    swiglu = Method(activation.swiglu)
    geglu = Method(activation.geglu)
    geglu_erf = Method(activation.geglu_erf)
    geglu_quick = Method(activation.geglu_quick)
    reglu = Method(activation.reglu)
    silu_alpha_limit = Method(activation.silu_alpha_limit)
    rope_table = Method(position.rope_table)
    rope = Method(position.rope)
    rows = Method(indexing.rows)
    set_rows = Method(indexing.set_rows)
    argmax = Method(indexing.argmax)
    top_k_of_parts = Method(sampling.top_k_of_parts)
    top_k_of_ids = Method(sampling.top_k_of_ids)
    penalise = Method(sampling.penalise)
    sample = Method(sampling.sample)
    contiguous = Method(copying.contiguous)
    flip = Method(copying.flip)
    cast = Method(copying.cast)
    concat = Method(copying.concat)
    paged_attention = Method(paged.paged_attention)
    matmul = Method(products.matmul)
    out_prod = Method(outer.out_prod)
    avg_pool2d = Method(resampling.avg_pool2d)
    interpolate = Method(resampling.interpolate)
    resize = Method(resizing.resize)
    ssm_conv = Method(ssm.ssm_conv)
    ssm_scan = Method(ssm.ssm_scan)
    short_conv = Method(short_convolution.short_conv)
    token_shift = Method(short_convolution.token_shift)
    gated_delta = Method(head_scans.gated_delta)
    gated_linear = Method(head_scans.gated_linear)
    wkv7 = Method(head_scans.wkv7)
    selective_scan = Method(head_scans.selective_scan)
    rope_table_axes = Method(position.rope_table_axes)

    conv1d_dw = Method(convolution.conv1d_dw)
    conv1d = Method(convolution.conv1d)
    conv2d = Method(convolution.conv2d)
    conv3d = Method(convolution.conv3d)
    conv_transpose1d = Method(transposed.conv_transpose1d)
    conv_transpose2d = Method(transposed.conv_transpose2d)
    conv_transpose3d = Method(transposed.conv_transpose3d)
    im2col = Method(columns.im2col)
    col2im = Method(columns.col2im)
    max_pool = Method(pooling.max_pool)
    avg_pool = Method(pooling.avg_pool)
    pad_mode = Method(padding.pad_mode)
    timestep_embedding = Method(timesteps.timestep_embedding)
    scaled_dot_product_attention = Method(dot_product.scaled_dot_product_attention)
    mulmat_id = Method(experts.mulmat_id)
    add_id = Method(experts.add_id)
    of_best_groups = Method(route.of_best_groups)
    sparse_mixer = Method(sparse_mixer.sparse_mixer)

    def rope_with(
        self, positions: Tensor, options: RopeOptions, factors: Tensor | None = None
    ) -> Tensor:
        """Rotate heads by positions: the complete ``RoPE`` of `ml`.

        The table of angles is made once for equal arguments, so layers share it.

        Parameters
        ----------
        positions : (tokens,), i32
            With `options.sections` (4, tokens) or (4 * tokens,).
        options : RopeOptions
            Dimensions, base, scale, type, YaRN, sections.
        factors : (dims / 2,), f32, or None
            Divisors of the frequencies.

        Returns
        -------
        (tokens, heads, cols), f32, as the tensor itself is; block formats are dequantised.
        """
        key = ("rope", positions, options, factors)
        memo = positions.context.memo
        table = memo.get(key)
        if table is None:
            table = memo[key] = _rope_table(positions, options, factors)
        x = self.cast(dtype=F32) if self.dtype.quantised else self
        return x.rope(table, interleaved=options.interleaved)

    def rope_from(
        self,
        offset: int,
        *,
        dims: int,
        traditional: bool = False,
        scale: float = 1.0,
        base: float = 10000.0,
        freqs: Tensor | None = None,
    ) -> Tensor:
        """Rotate (batch, heads, tokens, cols) by positions from `offset` on: ``RoPE`` of `x/ml`.

        Parameters
        ----------
        offset : int
            Position of the first token.
        dims : int
            Values of a head that are rotated.
        traditional : bool
            Pairs are neighbours; otherwise halves.
        scale : float
            Factor of positions.
        freqs : (dims / 2,), f32, or None
            Positions that turn each pair by one radian, instead of what `base` gives.

        Returns
        -------
        (batch, heads, tokens, cols), f32.
        """
        if len(self.shape) != 4:
            raise ShapeError(f"rope_from: x is {self.shape}, needs (batch, heads, tokens, cols)")
        batch, heads, tokens, cols = self.shape
        options = RopeOptions(dims, base, scale)
        positions = self.context.from_numpy(list(range(offset, offset + tokens)), I32)
        frequencies = self.context.from_numpy(options.frequencies())
        if freqs is not None:
            frequencies = scale / freqs
        table = positions.rope_table(frequencies)
        tokens_first = self.reshape(batch * heads, tokens, cols).permute(1, 0, 2)
        y = tokens_first.rope(table, interleaved=traditional)
        return y.permute(1, 0, 2).reshape(batch, heads, tokens, cols)


def _apply(op: Callable[..., Node], *operands: Operand) -> Tensor:
    return cast("Tensor", op(*operands))


def _comparable(other: object) -> bool:
    return isinstance(other, Node) or is_numbers(other)


def _rope_table(positions: Tensor, options: RopeOptions, factors: Tensor | None) -> Tensor:
    context = positions.context
    frequencies = context.from_numpy(options.frequencies())
    if factors is not None:
        frequencies = frequencies.div(factors)
    if not options.sections:
        return positions.rope_table(frequencies, magnitude=options.magnitude)
    axes = context.from_numpy(options.axes)
    return positions.rope_table_axes(
        frequencies, axes, count=POSITION_AXES, magnitude=options.magnitude
    )


def leaf(spec: Spec, storage: Storage, context: Builder | None = None) -> Tensor:
    """Make a tensor over storage that ops do not fill."""
    return Tensor(spec, storage, builder=context)


def check_shape(count: int, shape: Sequence[Extents], subject: str) -> Shape:
    """Return `shape` if it holds `count` values; (count,) if it is empty."""
    wanted = specs.extents(subject, shape) or (count,)
    if math.prod(wanted) != count:
        raise ShapeError(f"{subject}: {count} values, shape {wanted} holds {math.prod(wanted)}")
    return wanted
