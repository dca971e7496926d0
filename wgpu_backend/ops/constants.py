"""Conversion of operands that are numbers or arrays to constants.

Parameters annotated as `Node` are an op's operands. Those that the op names (`op(constants=("a",
"b"))`) may be a number, a list or an array, which takes the type of the tensor operand, so that
integers stay integers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import (
    BF16,
    BOOL,
    COMPLEX64,
    F32,
    I32,
    U32,
    DType,
    convert_values,
    f32_to_bf16,
)
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Builder, Node
from wgpu_backend.ops.check import FLOATS, describe, refuse_array, require_tensor

Array = NDArray[Any]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
_BY_KIND = {"f": F32, "i": I32, "u": I32, "b": BOOL, "c": COMPLEX64}


class Operands:
    """The parameters of an op that are tensors, and those that also take numbers.

    Parameters
    ----------
    op : str
        Name of the op, for messages.
    record : callable
        The op's function.
    constants : iterable of str
        Parameters that take numbers and arrays; the first gives the result its type.
    """

    def __init__(self, op: str, record: Callable[..., Any], constants: Iterable[str]) -> None:
        parameters = inspect.signature(record).parameters
        self.names = tuple(parameters)
        self._op = op
        self._constants = tuple(constants)
        # Whether each operand may be None. Those that come in any number are left to the op.
        self._optional = {
            name: "None" in str(p.annotation)
            for name, p in parameters.items()
            if _is_operand(p.annotation) and p.kind is not p.VAR_POSITIONAL
        }

    def numbers(self, args: Args, kwargs: Kwargs) -> list[str]:
        """Return the names of operands that are numbers or arrays, and become constants.

        Raises
        ------
        DTypeError
            An operand is not a tensor, and cannot become one.
        """
        found: list[str] = []
        for name, value in [*zip(self.names, args, strict=False), *kwargs.items()]:
            if isinstance(value, Node) or name not in self._optional:
                continue
            if value is None and self._optional[name]:
                continue
            if name not in self._constants or not is_numbers(value):
                self._refuse(name, value)
            found.append(name)
        return found

    def _refuse(self, name: str, value: object) -> None:
        refuse_array(self._op, name, value)
        if not self._constants:
            require_tensor(self._op, name, value)
        what = "a tensor, a number or an array" if name in self._constants else "a tensor"
        raise DTypeError(f"{self._op}: {name} is {describe(value)}, needs {what}")

    def replace_numbers(
        self, builder: Builder, args: Args, kwargs: Kwargs, numbers: list[str]
    ) -> tuple[Args, dict[str, Any]]:
        """Replace numbers in the arguments by constants."""
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        others = [given.get(name) for name in self._constants]
        types = [node.spec.dtype for node in others if isinstance(node, Node)]
        arrays = {name: as_array(self._op, given[name]) for name in numbers}
        # Numbers take the type of a tensor, as NumPy's Python scalars do.
        dtype = types[0] if types else default_dtype(np.result_type(*arrays.values()))
        for name, values in arrays.items():
            # A first operand sets the type of the result; others keep their digits in f32.
            exact = name == self._constants[0] or dtype not in FLOATS
            subject = f"{self._op}: {name}"
            given[name] = constant(builder, subject, values, dtype if exact else F32)
        return tuple(given.pop(name) for name in self.names[: len(args)]), given


def _is_operand(annotation: Any) -> bool:  # noqa: ANN401
    return annotation is Node or str(annotation).replace(" ", "") in ("Node", "Node|None")


def is_numbers(value: object) -> bool:
    """Return whether a value is a number, a NumPy array, or a list of numbers."""
    return isinstance(value, int | float | complex | np.ndarray | np.generic | list | tuple)


def as_array(subject: str, values: object) -> Array:
    """Convert numbers to an array.

    Raises
    ------
    ShapeError
        Lists have rows of several lengths.
    DTypeError
        There is something other than numbers among them.
    """
    try:
        array: Array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise ShapeError(f"{subject}: {describe(values)} makes no array: {error}") from None
    if array.dtype.kind == "f" and isinstance(values, list | tuple):
        array = _whole_numbers(cast("object", values), array)
    if array.dtype.kind not in _BY_KIND:
        raise DTypeError(
            f"{subject}: {describe(cast('object', values))} of NumPy's {array.dtype}, needs numbers"
        )
    return array


def _whole_numbers(values: object, array: Array) -> Array:
    """Return Python's whole numbers beyond 63 bits as uint64; NumPy rounds them to floats."""
    if array.dtype != np.float64 or not (np.abs(array) >= 2.0**63).any():
        return array
    exact: Array = np.asarray(values, dtype=object)
    if not all(isinstance(v, int | np.integer) for v in exact.flat):
        return array
    low, high = min(exact.flat), max(exact.flat)
    return exact.astype(np.uint64) if low >= 0 and high < 2**64 else array


def default_dtype(kind: np.dtype[Any]) -> DType:
    """Return the default type of a tensor made from an array."""
    return U32 if kind == np.uint32 else _BY_KIND[kind.kind]


def constant(builder: Builder, subject: str, values: Array, dtype: DType) -> Node:
    """Make a constant of a type; raise DTypeError if the type cannot hold a value."""
    if values.dtype.kind == "f" and dtype not in FLOATS:
        raise DTypeError(
            f"{subject} is {describe(values.tolist())} with a tensor of {dtype}, needs integers; "
            "cast the tensor to f32 first"
        )
    # NumPy has no bf16.
    fitting = convert_values(subject, values, F32 if dtype == BF16 else dtype)
    stored = f32_to_bf16(fitting) if dtype == BF16 else fitting
    return builder.constant(stored.tobytes(), dtype, cast("tuple[int, ...]", values.shape))
