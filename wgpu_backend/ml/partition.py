"""The partition of a graph over devices: parts of one device each, and the values that cross.

Weights and states are on devices; a node runs where its own are. Other nodes follow the values that
they read. Nodes that need only inputs are repeated in every part that reads them, so that positions
and masks never cross::

    part 0 on vulkan:0   embedding, layers 0 to 15        reads back the hidden states
    part 1 on cpu        layers 16 to 31, output head     gets them as an input

A part is a graph of its own: its nodes are copies, whose operands are inputs where another part
computes them. Parts run in their order; one that needs nothing of another may run at any time after
the earlier parts of its device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from wgpu_backend.errors import ContextError
from wgpu_backend.graph.node import Call, Node, Storage, get_operands
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.op import find

# Prefix of inputs with values of other parts, or with small states of other devices.
CROSSING = "crossing "


@dataclass(frozen=True, slots=True)
class Home:
    """The device of a weight or a state.

    Parameters
    ----------
    devices : tuple of int
        Devices that have it, the preferred one first.
    binding : int
        2 where only these devices may compute with it, as with caches of layers; 1 for weights of
        layers; 0 where the device is only preferred.
    follows : bool
        Whether any device may have a copy: of small weights, and of small states as an input.
    """

    devices: tuple[int, ...]
    binding: int = 0
    follows: bool = False


class Places(Protocol):
    """The devices of storages, as a partition sees them."""

    @property
    def default(self) -> int:
        """The device of nodes that nothing places."""
        ...

    def name(self, device: int) -> str:
        """Return the id of a device."""
        ...

    def home(self, storage: Storage) -> Home:
        """Return the home of a weight or a state."""
        ...

    def pinned(self, storage: Storage) -> int | None:
        """Return the device that a caller chose for a result, see `Tensor.to`."""
        ...

    def local(self, storage: Storage, device: int) -> Storage:
        """Return a weight as it is stored on a device, copied there if need be."""
        ...

    def spec(self, storage: Storage) -> Spec:
        """Return the spec of a whole state."""
        ...


@dataclass(slots=True)
class Part:
    """A part of a graph, for one device.

    Parameters
    ----------
    reads : list of Node
        Nodes whose values the host reads: outputs, and what other parts or devices need.
    writes : list of Node
        Further nodes that have to run, for what they write.
    crossings : dict of str to (int, int)
        Inputs from other parts, by name: the part, and the position in its `reads`.
    states : dict of str to Storage
        Inputs that bring small states of other devices, by name.
    updates : dict of Storage to int
        Small states that the part wrote, which other devices may read: the position in `reads`.
    """

    device: int
    reads: list[Node] = field(default_factory=list[Node])
    writes: list[Node] = field(default_factory=list[Node])
    crossings: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    states: dict[str, Storage] = field(default_factory=dict[str, Storage])
    updates: dict[Storage, int] = field(default_factory=dict[Storage, int])
    # Storages and nodes of the whole graph, and what stands for them here.
    local: dict[Storage, Storage] = field(default_factory=dict[Storage, Storage])
    copies: dict[int, Node] = field(default_factory=dict[int, Node])
    whole: dict[Storage, int] = field(default_factory=dict[Storage, int])

    def forget(self, storage: Storage) -> None:
        """Forget the part's copy of a storage."""
        gone = self.local.pop(storage)
        self.copies = {key: node for key, node in self.copies.items() if node.storage is not gone}


class Partition:
    """The parts of a graph.

    Parameters
    ----------
    outputs : sequence of Node
        Nodes of the whole graph whose values are wanted.
    read : bool
        Whether the host reads the outputs. Otherwise they only have to be computed.

    Attributes
    ----------
    scheduled : list of Node
        Nodes of the whole graph, in order.
    parts : list of Part
    results : list of (int, int)
        For each output its part, and its position in the part's `reads`; empty without `read`.
    part_of : dict of Storage to int
        The part that computes each intermediate.

    Raises
    ------
    ContextError
        An op has operands on two devices.
    """

    def __init__(self, outputs: Sequence[Node], places: Places, *, read: bool = True) -> None:
        self._places = places
        self.scheduled = schedule(outputs)
        self.parts: list[Part] = []
        self.results: list[tuple[int, int]] = []
        self.part_of: dict[Storage, int] = {}
        self._specs: dict[Storage, Spec] = {}
        self._makers: dict[Storage, Node] = {}
        self._writers: dict[Storage, list[Node]] = {}
        # States that were written, and the earliest part for the next write of each state.
        self._written: dict[Storage, int] = {}
        self._next_write: dict[Storage, int] = {}
        self._free: dict[Storage, Node] = {}
        self._analyse({node.storage for node in outputs})
        for node in self.scheduled:
            if node.storage not in self._free:
                self._place(node)
        for node in outputs:
            self._put_out(node, read=read)

    # What can be repeated, and what writes what.

    def _analyse(self, wanted: Collection[Storage]) -> None:
        """Find the makers and writers of storages, and the nodes that parts may repeat."""
        for node in self.scheduled:
            assert node.launch is not None
            self._writers.setdefault(node.storage, []).append(node)
            if node.launch.into is None:
                self._makers[node.storage] = node
                self._specs[node.storage] = Spec.dense(node.launch.out.shape, node.launch.out.dtype)
        written: set[Storage] = set()
        for node in self.scheduled:
            if node.launch is not None and node.launch.into is not None:
                written.add(node.storage)
            elif self._is_free(node, written) and node.storage not in wanted:
                self._free[node.storage] = node

    def _is_free(self, node: Node, written: Collection[Storage]) -> bool:
        alone = len(self._writers[node.storage]) == 1
        pinned = self._places.pinned(node.storage) is not None
        return (
            alone
            and not pinned
            and all(self._is_everywhere(o.storage, written) for o in get_operands(node))
        )

    def _is_everywhere(self, storage: Storage, written: Collection[Storage]) -> bool:
        if storage.kind == "input" or storage in self._free:
            return True
        # A small state that this graph has not written yet.
        return (
            storage.kind == "state"
            and storage not in written
            and self._places.home(storage).follows
        )

    # The device of a node.

    def _device(self, node: Node) -> int:
        """Return the device of a node that is not repeated."""
        pinned = self._places.pinned(node.storage)
        if pinned is not None:
            return pinned
        found = self._allowed(node)
        sources = [self.part_of.get(operand.storage, -1) for operand in get_operands(node)]
        latest = max(sources, default=-1)
        if latest < 0:
            return found[0] if found else self._places.default
        near = self.parts[latest].device
        return near if not found or near in found else found[0]

    def _allowed(self, node: Node) -> tuple[int, ...]:
        """Return the devices that a node's weights and states allow; empty if it has neither."""
        placed = [
            (operand, self._places.home(operand.storage))
            for operand in self._all_operands(node)
            if operand.storage.kind in ("weight", "state")
        ]
        if node.storage.kind == "state":
            # A state is written where it is, whatever else the op reads.
            placed.append((node, Home(self._places.home(node.storage).devices[:1], 2)))
        found: tuple[int, ...] = ()
        by: Node | None = None
        for operand, home in sorted(placed, key=lambda each: -each[1].binding):
            both = tuple(d for d in (found or home.devices) if d in home.devices)
            if both and not (home.follows and not home.binding):
                found, by = both, operand if by is None else by
            elif not both and by is not None and home.binding and not home.follows:
                self._refuse(node, by, operand)
        return found

    def _all_operands(self, node: Node) -> Iterable[Node]:
        """Return the operands of a node, and of all others that write the same intermediate."""
        if node.storage.kind != "intermediate":
            return get_operands(node)
        return [o for writer in self._writers[node.storage] for o in get_operands(writer)]

    def _refuse(self, node: Node, one: Node, other: Node) -> None:
        a, b = (self._places.name(self._places.home(o.storage).devices[0]) for o in (one, other))
        label = node.call.op.name if node.call else "op"
        raise ContextError(
            f"{label}: {_describe(one)} is on {a} and {_describe(other)} is on {b}, needs both on "
            f"one device; copy one of them with .to({a!r})"
        )

    # The part of a node.

    def _place(self, node: Node) -> None:
        """Put a node into the first part of its device that runs after everything it reads."""
        assert node.launch is not None
        device = self._device(node)
        self._put(node, self._find_part(device, self._earliest(node, device)))

    def _earliest(self, node: Node, device: int) -> int:
        """Return the first part that a node may be in."""
        earliest = 0
        for operand in get_operands(node):
            earliest = max(earliest, self._earliest_reader(operand.storage, device))
        into = node.launch.into if node.launch is not None else None
        if into is not None:
            earliest = max(earliest, self._next_write.get(into.storage, 0))
        return earliest

    def _earliest_reader(self, storage: Storage, device: int) -> int:
        """Return the first part on a device that may read a storage."""
        if storage in self.part_of:
            source = self.part_of[storage]
            return source if self.parts[source].device == device else source + 1
        if storage.kind == "state":
            if self._is_here(storage, device):
                return self._written.get(storage, 0)
            # Its content crosses, from a part of its own device.
            return self._state_source(storage) + 1
        return 0

    def _is_here(self, storage: Storage, device: int) -> bool:
        """Return whether a device has the present content of a state, or may have a copy."""
        home = self._places.home(storage)
        if storage in self._written:
            return self.parts[self._written[storage]].device == device
        return device in home.devices or home.follows

    def _state_source(self, storage: Storage) -> int:
        """Return the part that reads back a state for other devices."""
        home = self._places.home(storage).devices[0]
        return self._find_part(home, self._written.get(storage, 0))

    def _find_part(self, device: int, earliest: int) -> int:
        """Return the first part of a device from a position on; a new one if there is none."""
        for index in range(earliest, len(self.parts)):
            if self.parts[index].device == device:
                return index
        self.parts.append(Part(device))
        return len(self.parts) - 1

    def _put(self, node: Node, index: int) -> None:
        """Copy a node into a part."""
        assert node.launch is not None
        part, into = self.parts[index], node.launch.into
        if into is None:
            part.local[node.storage] = node.storage
            self.part_of[node.storage] = index
        else:
            self._forget_elsewhere(into.storage, index)
            if into.storage.kind == "state":
                self._settle_readers(into.storage, index)
                self._use(into.storage, index)
                self._written[into.storage] = index
                self._next_write[into.storage] = max(index, self._next_write.get(into.storage, 0))
            else:
                self._take_over(into, index)
        made = self._copy_op(node, index)
        if into is not None and into.storage.kind == "state":
            part.writes.append(made)
            part.whole.pop(into.storage, None)
            if self._places.home(into.storage).follows:
                part.updates[into.storage] = self._read_whole(into.storage, index)

    def _forget_elsewhere(self, storage: Storage, index: int) -> None:
        """Make other parts fetch a storage again after it was written."""
        for other, part in enumerate(self.parts):
            found = part.local.get(storage)
            if other != index and found is not None and found.label.startswith(CROSSING):
                part.forget(storage)

    def _settle_readers(self, state: Storage, index: int) -> None:
        """Compute the nodes that read the old content of a small state, before a part writes it."""
        reads = {state}
        for storage, node in list(self._free.items()):
            if any(o.storage in reads for o in get_operands(node)):
                reads.add(storage)
                self._use(storage, index)
                self.part_of[storage] = index
                del self._free[storage]

    def _take_over(self, into: Node, index: int) -> None:
        """Give a part an intermediate to write into: its own, or a copy of another part's."""
        storage, part = into.storage, self.parts[index]
        crossed = self._use(storage, index)
        if crossed.kind == "intermediate":
            return
        spec, contiguous = self._specs[storage], find("contiguous")
        leaf = Node(spec, crossed)
        part.forget(storage)
        part.local[storage] = Storage(storage.nbytes, "intermediate")
        part.copies[id(self._makers[storage])] = Node(
            spec,
            part.local[storage],
            call=Call(contiguous, (leaf,), {}),
            launch=contiguous.record(leaf),
        )
        self.part_of[storage] = index

    # Copies of nodes.

    def _use(self, storage: Storage, index: int) -> Storage:
        """Return the copy of a storage that a part uses."""
        part = self.parts[index]
        found = part.local.get(storage)
        if found is None:
            found = part.local[storage] = self._stand_in(storage, index)
        return found

    def _stand_in(self, storage: Storage, index: int) -> Storage:
        part = self.parts[index]
        if storage in self._free:
            node = self._free[storage]
            part.local[storage] = Storage(storage.nbytes, "intermediate")
            self._copy_op(node, index)
            return part.local[storage]
        if storage in self.part_of:
            return self._cross(storage, self.part_of[storage], index)
        if storage.kind == "weight":
            return self._places.local(storage, part.device)
        if storage.kind == "state":
            return self._stand_in_state(storage, index)
        if storage.kind == "input" and storage.label:
            return Storage(storage.nbytes, "input", storage.label, storage.handle)
        # A constant; or an intermediate of which an op only needs the shape.
        return storage if storage.kind == "input" else Storage(storage.nbytes, "intermediate")

    def _stand_in_state(self, storage: Storage, index: int) -> Storage:
        part = self.parts[index]
        if self._is_here(storage, part.device):
            if part.device in self._places.home(storage).devices:
                return storage
            name, spec = f"{CROSSING}state {len(part.states)}", self._whole_spec(storage)
            part.states[name] = storage
            return Storage(spec.nbytes, "input", name, spec)
        return self._cross(storage, self._state_source(storage), index)

    def _cross(self, storage: Storage, source: int, index: int) -> Storage:
        """Return an input for a value that another part computes."""
        spec = self._whole_spec(storage)
        if spec.dtype.numpy is None:
            raise ContextError(
                f"{_describe(Node(spec, storage))}: a {spec.dtype} tensor cannot be copied from "
                f"{self._places.name(self.parts[source].device)} to another device"
            )
        part = self.parts[index]
        name = f"{CROSSING}{len(part.crossings)}"
        part.crossings[name] = source, self._read_whole(storage, source)
        # The source reads it at its end, so writes have to wait for the next part.
        self._next_write[storage] = max(source + 1, self._next_write.get(storage, 0))
        return Storage(spec.nbytes, "input", name, spec)

    def _whole_spec(self, storage: Storage) -> Spec:
        return self._specs[storage] if storage in self._specs else self._places.spec(storage)

    def _read_whole(self, storage: Storage, index: int) -> int:
        """Return the position in a part's reads of the whole content of a storage."""
        part = self.parts[index]
        if storage not in part.whole:
            here = self._use(storage, index)
            # The last writer has to run before it is read.
            copies = [part.copies.get(id(w)) for w in self._writers.get(storage, ())]
            writers = [copy for copy in copies if copy is not None]
            source = writers[-1] if writers else None
            part.whole[storage] = len(part.reads)
            part.reads.append(Node(self._whole_spec(storage), here, source=source))
        return part.whole[storage]

    def _copy_op(self, node: Node, index: int) -> Node:
        """Copy a node that a part computes."""
        part = self.parts[index]
        assert node.launch is not None and node.call is not None  # noqa: PT018
        launch = node.launch
        operands = {name: self._copy(o, index) for name, o in launch.operands.items()}
        into = None if launch.into is None else self._copy(launch.into, index)
        known = {o.storage for o in get_operands(node)}

        def argument(value: Any) -> Any:  # noqa: ANN401
            if isinstance(value, Node):
                # Of other nodes only the shape matters.
                return self._copy(value, index) if value.storage in known else _blank(value)
            if isinstance(value, tuple | list):
                items = [argument(each) for each in cast("Sequence[Any]", value)]
                return tuple(items) if isinstance(value, tuple) else items
            return value

        args = tuple(argument(each) for each in node.call.args)
        kwargs = {name: argument(each) for name, each in node.call.kwargs.items()}
        made = Node(
            node.spec,
            self._use(node.storage, index),
            call=Call(node.call.op, args, kwargs),
            launch=replace(launch, operands=operands, into=into),
        )
        part.copies[id(node)] = made
        return made

    def _copy(self, node: Node, index: int) -> Node:
        """Return a part's copy of a node: an op that it computes, a view, or a leaf."""
        part = self.parts[index]
        if (found := part.copies.get(id(node))) is not None:
            return found
        storage = self._use(node.storage, index)
        # Repeated nodes are copied with their storage.
        if (found := part.copies.get(id(node))) is not None:
            return found
        source = None if node.source is None else self._copy(node.source, index)
        made = Node(node.spec, storage, source=source)
        part.copies[id(node)] = made
        return made

    # Outputs.

    def _put_out(self, node: Node, *, read: bool) -> None:
        """Compute an output in its part, and read it back if `read`."""
        storage = node.storage
        if storage in self.part_of:
            index = self.part_of[storage]
        elif storage.kind == "state":
            index = self._state_source(storage)
        elif storage.kind == "weight":
            index = self._find_part(self._places.home(storage).devices[0], 0)
        else:
            index = self._find_part(self._places.default, 0)
        part, made = self.parts[index], self._copy(node, index)
        if not read:
            part.writes.append(made)
            return
        self.results.append((index, len(part.reads)))
        part.reads.append(made)


def _blank(node: Node) -> Node:
    return Node(node.spec, Storage(node.storage.nbytes, "intermediate"))


def _describe(node: Node) -> str:
    label = node.storage.label or node.storage.kind
    return f"{label} {node.spec.shape}"
