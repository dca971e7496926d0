"""Graphs and capabilities as plain data, for a stage on another node.

A node of an op is the op's name and its arguments; the other side calls the op with them, so both
need the same version. Nothing in a message names code: ops and data classes are looked up in tables
of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np

from wgpu_backend.dtypes import DType, named
from wgpu_backend.errors import BackendError, ContextError
from wgpu_backend.graph.capabilities import Capabilities, GroupSizes, MatrixUnit, Tile
from wgpu_backend.graph.node import Call, Node, Storage, StorageKind
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.paged_options import Scores, Temperature
from wgpu_backend.ops.elementwise.fusion import Step
from wgpu_backend.ops.linear.attributes import Epilogue, Prologue
from wgpu_backend.ops.op import find

Plain = Any
# Data classes that ops take as arguments.
_CLASSES: Mapping[str, type] = {
    each.__name__: each for each in (Scores, Temperature, Step, Epilogue, Prologue)
}
_SCALARS = (bool, int, float, str, type(None))


def spec_to_plain(spec: Spec) -> Plain:
    """Return a spec as plain data."""
    return [list(spec.shape), spec.dtype.name, list(spec.strides), spec.offset]


def spec_from_plain(plain: Plain) -> Spec:
    """Return a spec from plain data."""
    shape, dtype, strides, offset = plain
    return Spec(tuple(shape), named(dtype), tuple(strides), offset)


class GraphEncoder:
    """A graph in plain data.

    Parameters
    ----------
    outputs : sequence of Node
        Nodes whose values are wanted.
    unread : sequence of Node
        Further nodes that are computed.
    number : callable
        Returns the number of a weight or a state on the stage.

    Attributes
    ----------
    plain : dict
        The graph without the bytes of constants.
    raw : bytes
        The bytes of its constants, one after the other.
    index : dict of Storage to int
        Positions of its storages.

    Raises
    ------
    ContextError
        An argument of an op cannot be sent.
    """

    def __init__(
        self, outputs: Sequence[Node], unread: Sequence[Node], number: Callable[[Storage], int]
    ) -> None:
        self._number = number
        self.index: dict[Storage, int] = {}
        self._storages: list[Plain] = []
        self._raw = bytearray()
        nodes = _list_nodes([*outputs, *unread])
        self._places = {id(node): at for at, node in enumerate(nodes)}
        self.plain: dict[str, Plain] = {
            "nodes": [self._encode_node(node) for node in nodes],
            "outputs": [self._places[id(node)] for node in outputs],
            "unread": [self._places[id(node)] for node in unread],
            "storages": self._storages,
        }
        self.raw = bytes(self._raw)

    def _encode_node(self, node: Node) -> Plain:
        source = None if node.source is None else self._places[id(node.source)]
        call: Plain = None
        if node.call is not None and node.launch is not None:
            name = node.call.op.name
            args = [self._encode(name, value) for value in node.call.args]
            given = node.call.kwargs.items()
            call = [name, args, {key: self._encode(name, value) for key, value in given}]
        return [spec_to_plain(node.spec), self._place(node.storage), source, call]

    def _place(self, storage: Storage) -> int:
        if storage not in self.index:
            self.index[storage] = len(self._storages)
            self._storages.append([storage.kind, storage.nbytes, *self._describe(storage)])
        return self.index[storage]

    def _describe(self, storage: Storage) -> list[Plain]:
        if storage.kind in ("weight", "state"):
            return [self._number(storage)]
        if storage.kind == "intermediate":
            return []
        if storage.label:
            return [storage.label, spec_to_plain(storage.handle)]
        at = len(self._raw)
        self._raw += storage.handle
        return ["", [at, len(storage.handle)]]

    def _encode(self, op: str, value: Any) -> Plain:  # noqa: ANN401
        if isinstance(value, Node):
            return {"node": self._places[id(value)]}
        if isinstance(value, np.generic):
            # JSON knows Python's numbers only.
            value = cast("Any", value).item()
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, DType):
            return {"dtype": value.name}
        if isinstance(value, tuple | list):
            items = [self._encode(op, each) for each in cast("Sequence[Any]", value)]
            # JSON has one kind of sequence, and ops compare their options with tuples.
            return {"tuple": items} if isinstance(value, tuple) else items
        kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
        # By identity: a plugin's class of the same name is another one.
        if _CLASSES.get(kind.__name__) is kind:
            items = {each.name: getattr(value, each.name) for each in fields(kind)}
            return {
                "class": kind.__name__,
                "fields": {name: self._encode(op, each) for name, each in items.items()},
            }
        raise ContextError(
            f"{op}: an argument of type {kind.__name__} cannot be sent to another node; place the "
            "layer on the first node"
        )


def _list_nodes(wanted: Sequence[Node]) -> list[Node]:
    """Return nodes and all that they need, or take as arguments, in the order they were made."""
    found: dict[int, Node] = {}
    left = list(wanted)
    while left:
        node = left.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        left += node.dependencies()
        if node.call is not None and node.launch is not None:
            left += _find_nodes([*node.call.args, *node.call.kwargs.values()])
    # An op is called with nodes that exist, so the stage makes them in the order of this process.
    return sorted(found.values(), key=lambda node: node.sequence)


def _find_nodes(values: Sequence[Any]) -> list[Node]:
    found: list[Node] = []
    for value in values:
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _find_nodes(cast("Sequence[Any]", value))
    return found


class GraphDecoder:
    """A graph from plain data.

    Parameters
    ----------
    plain, raw
        See `GraphEncoder`.
    kept : mapping of int to Storage
        Weights and states by their numbers.

    Attributes
    ----------
    outputs, unread : list of Node
    storages : list of Storage

    Raises
    ------
    BackendError
        The data are no graph, or of another version.
    """

    def __init__(self, plain: Mapping[str, Plain], raw: bytes, kept: Mapping[int, Storage]) -> None:
        self._kept, self._raw = kept, raw
        self.outputs: list[Node] = []
        self.unread: list[Node] = []
        self.storages: list[Storage] = []
        try:
            self.storages += [self._decode_storage(*each) for each in plain["storages"]]
            self._nodes: list[Node] = []
            for each in plain["nodes"]:
                self._nodes.append(self._decode_node(*each))
            self.outputs += [self._nodes[at] for at in plain["outputs"]]
            self.unread += [self._nodes[at] for at in plain["unread"]]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise BackendError(
                f"stage: a graph is damaged: {type(error).__name__} {error}"
            ) from error

    def _decode_storage(self, kind: StorageKind, nbytes: int, *more: Plain) -> Storage:
        if kind in ("weight", "state"):
            return self._kept[more[0]]
        if kind == "intermediate":
            return Storage(nbytes, kind)
        label, given = more
        if label:
            return Storage(nbytes, "input", label, spec_from_plain(given))
        at, count = given
        return Storage(nbytes, "input", "", self._raw[at : at + count])

    def _decode_node(self, spec: Plain, storage: int, source: int | None, call: Plain) -> Node:
        made, place = spec_from_plain(spec), self.storages[storage]
        view = None if source is None else self._nodes[source]
        if call is None:
            return Node(made, place, source=view)
        name, args, kwargs = call
        op = find(name)
        given = tuple(self._decode(value) for value in args)
        named_ = {key: self._decode(value) for key, value in kwargs.items()}
        launch = op.record(*given, **named_)
        if launch.into is not None and launch.into.storage is not place:
            raise BackendError(
                f"stage: op {name} writes to another tensor here; install one version on all nodes"
            )
        return Node(made, place, source=view, call=Call(op, given, named_), launch=launch)

    def _decode(self, value: Plain) -> Any:  # noqa: ANN401
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, list):
            return [self._decode(each) for each in cast("list[Plain]", value)]
        given = cast("dict[str, Plain]", value)
        if "node" in given:
            at: int = given["node"]
            return self._nodes[at]
        if "tuple" in given:
            return tuple(self._decode(each) for each in given["tuple"])
        if "dtype" in given:
            return named(given["dtype"])
        if "complex" in given:
            return complex(*given["complex"])
        items = {name: self._decode(each) for name, each in given["fields"].items()}
        return _CLASSES[given["class"]](**items)


def capabilities_to_plain(known: Capabilities) -> dict[str, Plain]:
    """Return capabilities as plain data."""
    found: dict[str, Plain] = {each.name: getattr(known, each.name) for each in fields(known)}
    sizes, unit = known.group_sizes, known.matrix
    return {
        **found,
        "tuned": {name: [t.rows, t.columns, t.threads] for name, t in known.tuned.items()},
        "rounded": [*known.rounded],
        "unrounded": [*known.unrounded],
        "group_sizes": [sizes.threads, sizes.few, sizes.many, sizes.items_per_thread],
        "matrix": unit and [unit.m, unit.n, unit.k, unit.subgroup, unit.dialect],
    }


def capabilities_from_plain(plain: dict[str, Plain]) -> Capabilities:
    """Return capabilities from plain data."""
    unit = plain["matrix"]
    changed: dict[str, Plain] = {
        "tuned": {name: Tile(*tile) for name, tile in plain["tuned"].items()},
        "rounded": frozenset(plain["rounded"]),
        "unrounded": frozenset(plain["unrounded"]),
        "group_sizes": GroupSizes(*plain["group_sizes"]),
        "matrix": unit and MatrixUnit(*unit),
        "expert_tiles": tuple((tile, least) for tile, least in plain["expert_tiles"]),
    }
    return Capabilities(**{**plain, **changed})
