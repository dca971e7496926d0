"""What an op is: a function from operands to a `Launch`, with a name and a WGSL file.

::

    @op
    def silu(x: Node) -> Launch: ...          shaders/silu.wgsl

    @op(shader=Path("swish.wgsl"))            an op from outside the package
    def swish(x: Node) -> Launch: ...

Calling the op checks that its operands belong together, makes strided operands dense where the
kernel needs that (`dense=`), and adds a node to the operands' graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import update_wrapper
from pathlib import Path
from typing import Any, Generic, ParamSpec, cast, overload

from wgpu_backend.device_info import Capabilities
from wgpu_backend.errors import ContextError
from wgpu_backend.graph.node import Builder, Call, Launch, Node

P = ParamSpec("P")
Select = Callable[[Launch, Capabilities], Launch]
REGISTRY: dict[str, Op[Any]] = {}


class Op(Generic[P]):
    """A callable op.

    Parameters
    ----------
    record : callable
        Checks operands and returns the launch.
    name : str
    shader : str or Path
        WGSL file: a name below ``shaders/``, or a path elsewhere.
    select : callable or None
        Chooses the variant of a launch that suits a device.
    dense : iterable of str
        Parameters whose operand is made contiguous first, beginning at a whole vector of four.
    trusted : bool
        The kernels stay inside their buffers without bounds clamping.
    """

    def __init__(
        self,
        record: Callable[P, Launch],
        *,
        name: str,
        shader: str | Path,
        select: Select | None = None,
        dense: Iterable[str] = (),
        trusted: bool = False,
    ) -> None:
        self.record = record
        self.name = name
        self.shader = shader
        self.select = select
        self.trusted = trusted
        self._dense = frozenset(dense)
        self._names = tuple(inspect.signature(record).parameters)
        update_wrapper(self, record)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Node:
        """Add the op's node to the graph of its operands."""
        return self.added(_builder(self.name, [*args, *kwargs.values()]), *args, **kwargs)

    def added(self, builder: Builder, /, *args: P.args, **kwargs: P.kwargs) -> Node:
        """Add the op's node to a graph; for ops without operands, which know none."""
        if self._dense:
            args, kwargs = self._densify(builder, args, kwargs)  # pyright: ignore[reportAssignmentType]
        launch = self.record(*args, **kwargs)
        return builder.add(Call(self, args, kwargs), launch)

    def _densify(
        self, builder: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        dense = self._dense
        done = tuple(
            _dense(builder, a) if name in dense else a
            for name, a in zip(self._names, args, strict=False)
        )
        return done, {k: _dense(builder, v) if k in dense else v for k, v in kwargs.items()}


def _dense(builder: Builder, value: Any) -> Any:  # noqa: ANN401
    """`value` itself, or a dense copy where it is a strided node or begins inside a vector."""
    if not isinstance(value, Node) or (value.spec.is_dense and value.spec.offset % 4 == 0):
        return value
    contiguous = REGISTRY["contiguous"]
    return builder.add(Call(contiguous, (value,), {}), contiguous.record(value))


def _builder(name: str, values: Iterable[Any]) -> Builder:
    builders = {
        id(v.builder): v.builder for v in values if isinstance(v, Node) and v.builder is not None
    }
    if len(builders) != 1:
        what = (
            "tensors of two contexts" if builders else "no tensor of a context among its operands"
        )
        raise ContextError(f"{name}: {what}; copy one over, or make an input in the same context")
    return next(iter(builders.values()))


@overload
def op(record: Callable[P, Launch], /) -> Op[P]: ...
@overload
def op(
    *,
    shader: str | Path = "",
    select: Select | None = None,
    dense: Iterable[str] = (),
    trusted: bool = False,
) -> Callable[[Callable[P, Launch]], Op[P]]: ...
def op(
    record: Callable[P, Launch] | None = None,
    /,
    *,
    shader: str | Path = "",
    select: Select | None = None,
    dense: Iterable[str] = (),
    trusted: bool = False,
) -> Op[P] | Callable[[Callable[P, Launch]], Op[P]]:
    """Make a function from operands to a `Launch` an op, named as the function.

    Raises
    ------
    ValueError
        Another op has that name.
    """

    def make(record: Callable[P, Launch]) -> Op[P]:
        name = record.__name__
        if name in REGISTRY:
            raise ValueError(f"op {name}: registered already by {REGISTRY[name].__module__}")
        made = Op(
            record, name=name, shader=shader or name, select=select, dense=dense, trusted=trusted
        )
        REGISTRY[name] = cast("Op[Any]", made)
        return made

    return make if record is None else make(record)
