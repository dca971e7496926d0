"""Nodes of the graph: a spec, the storage it looks at, and the launch that fills it.

A `Node` is a leaf (weight, input, state), a view of another node, or the result of an op. A
`Launch` says all a device needs to run the op: operands, parameters, choices and grid. Sequence
numbers give the order in which nodes were made; running launches in that order is always right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.spec import Spec
from wgpu_backend.graph.wgsl_source import Source

StorageKind = Literal["intermediate", "input", "weight", "state"]
Groups = tuple[int, int, int]
ParamValue = int | float | Sequence[int]
# Ops run in the order in which their nodes were made.
_sequence = itertools.count()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Storage:
    """The bytes of one or more nodes; compared by identity.

    Parameters
    ----------
    kind : str
        ``intermediate`` lives inside one plan; ``input`` is written before each run; ``weight`` is
        only read; ``state`` outlives plans and is written by ops.
    handle : object
        What the backend keeps there: buffers of a device, or a NumPy array.
    layout : object
        How a weight lies there, as the device decided when it was loaded; graphs do not look at it.
    """

    nbytes: int
    kind: StorageKind
    label: str = ""
    handle: Any = None
    layout: object = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One op, ready to be dispatched.

    Parameters
    ----------
    out : Spec
        Of the result; its binding is called ``y``.
    operands : mapping of str to Node
        By the name that the WGSL gives the binding.
    groups : (int, int, int) or callable
        Work groups of a kernel whose threads work together; a callable gets the number of weight
        rows that one dispatch covers.
    threads : int or callable
        Instead of `groups`, for a kernel whose threads are independent: how many there are. The
        device decides how many make a group, and the shader's ``WG`` follows.
    params : mapping
        Fields of ``struct Params`` beyond those filled from operands' specs.
    choices : mapping
        Parameters of the shader, see `wgpu_backend.device.wgsl.module`.
    shader : str, Path or Inline
        WGSL to take when it is not the op's own.
    into : Node or None
        Operand whose storage the launch writes; the result is a view of it.
    writes : tuple of str
        Operands that the launch writes besides the result: states, or what a replaced node made.
        Only fusion rules make such launches: nothing makes a reader wait for them.
    in_place : tuple of str
        Operands that the result may overwrite if no other node needs them.
    work : int
        Bytes read plus operations, a rough measure that bounds a submit.
    attributes : object
        Options of the op, as frozen data, where kernels and fusion rules need them.
    last_resort : bool
        The kernel is there so that every device can run the op. Fusion rules make no such launch:
        the ops that it would replace are faster.
    """

    out: Spec
    operands: Mapping[str, Node]
    groups: Groups | Callable[[int], Groups] | None = None
    threads: int | Callable[[int], int] | None = None
    params: Mapping[str, ParamValue] = field(default_factory=dict[str, ParamValue])
    choices: Mapping[str, str | int | float | bool] = field(
        default_factory=dict[str, "str | int | float | bool"]
    )
    shader: Source = ""
    into: Node | None = None
    writes: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    work: int = 0
    attributes: object = None
    last_resort: bool = False

    def count(self, name: str) -> int:
        """Return a parameter that is a whole number."""
        value = self.params[name]
        assert isinstance(value, int), f"{name} is {value}, needs a whole number"
        return value


class Operation(Protocol):
    """The op of a node, as the graph sees it."""

    @property
    def name(self) -> str:
        """The name of the op."""
        ...

    @property
    def shader(self) -> Source:
        """The op's WGSL."""
        ...

    @property
    def trusted(self) -> bool:
        """True if its kernels stay inside their buffers without bounds clamping."""
        ...

    @property
    def select(self) -> Callable[[Launch, Capabilities], Launch] | None:
        """The function that chooses the variant for a device, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """An op and the arguments of one call, as its NumPy reference gets them."""

    op: Operation
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Builder(Protocol):
    """A maker of nodes, such as a Context."""

    def add(self, call: Call, launch: Launch) -> Node:
        """Return a node for the result of an op."""
        ...

    def view(self, source: Node, spec: Spec) -> Node:
        """Return a node that looks at the storage of another."""
        ...

    def constant(self, data: bytes, dtype: DType, shape: Sequence[int]) -> Node:
        """Return a node with known values of a plain type."""
        ...


class Node:
    """A tensor in the graph.

    Parameters
    ----------
    builder : Builder or None
        None for weights, which take the builder of the other operands.
    call, launch
        How the storage is filled; None for leaves and views.
    source : Node or None
        For a view: the node it looks at.
    """

    __slots__ = ("builder", "call", "launch", "sequence", "source", "spec", "storage")

    def __init__(
        self,
        spec: Spec,
        storage: Storage,
        *,
        builder: Builder | None = None,
        call: Call | None = None,
        launch: Launch | None = None,
        source: Node | None = None,
    ) -> None:
        self.spec = spec
        self.storage = storage
        self.builder = builder
        self.call = call
        self.launch = launch
        self.source = source
        self.sequence = next(_sequence)

    def dependencies(self) -> list[Node]:
        """Return the nodes that must be computed before this one."""
        return [*get_operands(self), *([] if self.source is None else [self.source])]


def get_operands(node: Node) -> list[Node]:
    """Return the nodes that a node's launch reads, and the one that it writes into."""
    launch = node.launch
    if launch is None:
        return []
    return [*launch.operands.values(), *([] if launch.into is None else [launch.into])]


def get_reads(node: Node) -> set[Storage]:
    """Return the storages that a node's launch reads."""
    return {operand.storage for operand in get_operands(node)}


def get_writes(node: Node) -> list[Storage]:
    """Return the storages that a node's launch fills."""
    launch = node.launch
    also = () if launch is None else (launch.operands[name].storage for name in launch.writes)
    return [node.storage, *also]


def contains_node(node: Node, nodes: Iterable[Node]) -> bool:
    """Return whether `nodes` contains a node itself; ``in`` would compare the values of tensors."""
    return any(each is node for each in nodes)
