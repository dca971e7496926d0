"""Arithmetic value by value: add, sub, mul, div with NumPy broadcasting, and scale."""

from __future__ import annotations

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast, broadcast_strides
from wgpu_backend.ops.check import FLOATS, four, quads, require_dtype, require_rank
from wgpu_backend.ops.op import op


def binary(name: str, a: Node, b: Node) -> Launch:
    """Launch of an op whose WGSL builds on ``lib/binary``; the result has the dtype of `a`."""
    for operand, node in (("a", a), ("b", b)):
        require_rank(name, operand, node, 0)
        require_dtype(name, operand, node, FLOATS)
    out = Spec.dense(broadcast(name, a.spec, b.spec), a.spec.dtype)
    params = {
        "size": out.size,
        "shape": four(out.shape, 1),
        "a_strides": four(broadcast_strides(a.spec, out.shape), 0),
        "b_strides": four(broadcast_strides(b.spec, out.shape), 0),
        "b_size": max(b.spec.size, 1),
    }
    choices = {
        "A_DENSE": a.spec.is_dense and a.spec.shape == out.shape,
        "B_DENSE": b.spec.is_dense and b.spec.shape == out.shape,
        "B_WRAPS": wraps(b.spec, out.shape),
    }
    return Launch(
        out,
        {"a": a, "b": b},
        threads=quads(out.size),
        params=params,
        choices=choices,
        in_place=("a", "b"),
        work=a.spec.nbytes + b.spec.nbytes + out.nbytes,
    )


def wraps(spec: Spec, shape: Shape) -> bool:
    """Whether a dense operand repeats whole in `shape`, four values at a time."""
    own = spec.shape
    while own and own[0] == 1:
        own = own[1:]
    is_end = own == shape[len(shape) - len(own) :] and spec.shape != shape
    return spec.is_dense and is_end and spec.size % 4 == 0 and spec.size > 0


@op(trusted=True)
def add(a: Node, b: Node) -> Launch:
    """Sum of two tensors, with broadcasting.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`.

    Raises
    ------
    ShapeError
        The shapes do not broadcast.
    """
    return binary("add", a, b)


@op(trusted=True)
def sub(a: Node, b: Node) -> Launch:
    """Difference of two tensors; see `add`."""
    return binary("sub", a, b)


@op(trusted=True)
def mul(a: Node, b: Node) -> Launch:
    """Product of two tensors, value by value; see `add`."""
    return binary("mul", a, b)


@op(trusted=True)
def div(a: Node, b: Node) -> Launch:
    """Quotient of two tensors, value by value; see `add`."""
    return binary("div", a, b)


@op(dense=("x",), trusted=True)
def scale(x: Node, *, factor: float, bias: float = 0.0) -> Launch:
    """Multiply by a number and add another.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    factor, bias : float

    Returns
    -------
    Like `x`: ``x * factor + bias``.
    """
    require_dtype("scale", "x", x, FLOATS)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    params = {"size": out.size, "factor": factor, "bias": bias}
    return Launch(
        out,
        {"x": x},
        threads=quads(out.size),
        params=params,
        in_place=("x",),
        work=2 * out.nbytes,
    )
