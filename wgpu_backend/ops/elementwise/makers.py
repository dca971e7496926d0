"""Makers of elementwise ops: a row with a name, a NumPy function and a summary becomes an op.

::

    tanh = unary_op("tanh", np.tanh, "Return the hyperbolic tangent.")

The op ``NAME`` runs the WGSL function ``apply_NAME`` of a file in ``shaders/ops/elementwise``. Its
maker gives it operands, checks and the documentation of both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, cast

import numpy as np

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.launches import NUMBERS, binary, unary
from wgpu_backend.ops.op import Op, op
from wgpu_backend.ops.reference import Array, Reference

P = ParamSpec("P")
Formula = Callable[[Array], Array] | Callable[[Array, Array], Array]


class OpMaker(Generic[P]):
    """A maker of ops that differ in their name and formula.

    Parameters
    ----------
    launch : callable
        Gets the op's name and its operands, checks them and returns the launch. Its docstring
        ends every op's docstring, without the summary.
    constants : tuple of str
        See `Op`.
    shader : str
        WGSL of all these ops; left out, each has its own.
    """

    def __init__(
        self,
        launch: Callable[Concatenate[str, P], Launch],
        constants: tuple[str, ...] = (),
        shader: str = "",
    ) -> None:
        self._launch = launch
        self._constants = constants
        self._shader = shader
        self.names: list[str] = []

    def __call__(self, name: str, formula: Formula, summary: str, details: str = "") -> Op[P]:
        """Make an op and its NumPy reference.

        Parameters
        ----------
        name : str
            Of the op, and of its WGSL: ``apply_NAME``.
        formula : callable
            NumPy's function of as many arrays: the op's reference.
        summary, details : str
            Beginning of the op's docstring.
        """
        record: Any = partial(self._launch, name)
        record.__name__ = record.__qualname__ = name
        record.__module__ = self._launch.__module__
        # Ops of one maker have the same operands and errors, and so share their text.
        operands = (inspect.getdoc(self._launch) or "").partition("\n\n")[2]
        record.__doc__ = "\n\n".join(part for part in (summary, details, operands) if part)
        shader = self._shader or f"ops/elementwise/{name}"
        made = op(shader=shader, trusted=True, constants=self._constants)(record)
        made.reference(_reference(record, formula))
        self.names.append(name)
        return cast("Op[P]", made)


def op_maker(
    constants: tuple[str, ...] = (), shader: str = ""
) -> Callable[[Callable[Concatenate[str, P], Launch]], OpMaker[P]]:
    """Return a decorator that makes a launch function an `OpMaker`."""
    return lambda launch: OpMaker(launch, constants, shader)


def _reference(record: Callable[..., Launch], formula: Callable[..., Array]) -> Reference:
    """Return a formula with the signature of its op, which NumPy's functions do not have."""

    def call(*operands: Array) -> Array:
        return formula(*operands)

    call.__signature__ = inspect.signature(record)  # pyright: ignore[reportFunctionMemberAccess]
    return call


def in_f64(formula: Formula) -> Reference:
    """Return a formula that converts its operands to f64 first."""

    def compute(*operands: Array) -> Array:
        function: Reference = formula
        return function(*(x.astype(np.float64) for x in operands))

    return compute


@op_maker()
def unary_op(name: str, x: Node) -> Launch:
    """Launch an op on floats.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary(name, x)


@op_maker()
def unary_number_op(name: str, x: Node) -> Launch:
    """Launch an op on floats or integers.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or an integer

    Returns
    -------
    Like `x`, dense.
    """
    return unary(name, x, NUMBERS)


@op_maker(constants=("a", "b"))
def binary_op(name: str, a: Node, b: Node) -> Launch:
    """Launch an op on two tensors of floats, which broadcast.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast
        One may be a number or an array.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`.
    """
    return binary(name, a, b)


@op_maker(constants=("a", "b"))
def binary_number_op(name: str, a: Node, b: Node) -> Launch:
    """Launch an op on two tensors of numbers, which broadcast.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast; or of one integer type
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`; integers modulo their range.

    Raises
    ------
    ShapeError
        The shapes do not broadcast.
    DTypeError
        Other types, or an integer and a float.
    """
    return binary(name, a, b, NUMBERS)
