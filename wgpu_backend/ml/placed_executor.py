"""The executor of several devices: it gives each part of a graph to the executor of its device.

It keeps what is on which device: weights and states by the layer that their names have, and copies
of small ones for other devices. Graphs and their runs are in `ml.placed_graph`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np

from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.errors import ContextError, DeviceError, DeviceLost, Unclosed
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
from wgpu_backend.graph.node import Node, Storage, get_operands
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.executor import (
    Array,
    Executor,
    Pairs,
    Pausable,
    Pieces,
    sum_by_name,
)
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.partition import Home
from wgpu_backend.ml.placed_graph import PlacedRecorded, Schedule, Update, to_stored
from wgpu_backend.ml.placement import EMBEDDING, HOST, TABLE, Placement, find_layer

# Weights of at most so many bytes are copied to every device that reads them.
SMALL_NBYTES = 64 << 10
# States of at most so many bytes are inputs of graphs on other devices, sent with each run.
SMALL_STATE_NBYTES = 4 << 10
_KINDS = ("cpu", "software", "unknown", "virtual", "integrated", "discrete")


@dataclass(slots=True)
class _Kept:
    """A weight or a state.

    Parameters
    ----------
    data : bytes or None
        Of a weight.
    copies : dict of int to Storage
        Of a weight, on other devices.
    values : dict of int to ndarray
        Of a small state, for other devices that read it, as of `taken`.
    latest, taken : Update or None
        Of a small state with copies: what the latest run leaves, and what the copies hold. Each
        has all that the runs before it left, as a device computes them in their order.
    """

    spec: Spec
    home: Home
    label: str
    data: Pieces | None
    copies: dict[int, Storage] = field(default_factory=dict[int, Storage])
    values: dict[int, Array] = field(default_factory=dict[int, Array])
    latest: Update | None = None
    taken: Update | None = None


@runtime_checkable
class Reopenable(Protocol):
    """An executor on another node, which can be opened again after it was lost."""

    @property
    def lost(self) -> DeviceLost | None:
        """Return the error that lost the executor; None if it is alive, or cannot be reopened."""
        ...

    def reopen(self) -> None:
        """Reopen the executor, with its weights and graphs and with empty caches."""
        ...


class PlacedExecutor:
    """An executor made of one for each device.

    A weight or a state is on the device of the layer that its label names, as in
    ``blk.3.attn_q.weight`` or ``cache.3.key``.

    Parameters
    ----------
    children : sequence of Executor
        Executors of the placement's devices, in their order; it closes them.
    tied : bool
        Whether the embedding table is the output matrix, too, which both devices then have.

    Attributes
    ----------
    todo : object
        What is left to do of runs.

    Raises
    ------
    DeviceError
        There are not as many executors as devices.
    """

    def __init__(
        self, children: Sequence[Executor], placement: Placement, *, tied: bool = False
    ) -> None:
        if len(children) != len(placement.devices):
            raise DeviceError(
                f"placement: {len(children)} executors, {len(placement.devices)} devices are named"
            )
        self.children = tuple(children)
        self._remote = [child for child in children if isinstance(child, Reopenable)]
        # An executor of this process that has buffers. Those of another node stay there.
        local = (child for child in children if child not in self._remote)
        self._with_buffers = next((c for c in local if not isinstance(c, NumpyExecutor)), None)
        self.placement = placement
        self.tied = tied
        self.todo = Schedule(len(children))
        self._kept: WeakKeyDictionary[Storage, _Kept] = WeakKeyDictionary()
        self._pinned: WeakKeyDictionary[Storage, int] = WeakKeyDictionary()
        self._failure: BaseException | None = None
        self.info = _join_infos([child.info for child in children], placement.devices)
        self.capabilities = _join_capabilities([child.capabilities for child in children])
        self.unclosed = Unclosed(f"executor on {self.info.id}", *children)

    @property
    def devices(self) -> list[DeviceInfo]:
        """The devices, in the order of a pass."""
        named = zip(self.children, self.placement.devices, strict=True)
        return [replace(child.info, id=name) for child, name in named]

    @property
    def processors(self) -> int:
        """How many processors have layers and can work at once."""
        busy: set[str] = set()
        for at in self.placement.layers:
            # A device of another node has the node's address after its own id.
            device, _, node = self.name(at).partition("@")
            on_host = self.children[at].info.kind in ("software", "cpu")
            busy.add(f"{HOST if on_host else device.partition('#')[0]}@{node}")
        return max(1, len(busy))

    # The places of storages, see `ml.partition.Places`.

    @property
    def default(self) -> int:
        """The device of nodes that nothing places: that of the output head."""
        return self.placement.output

    def name(self, device: int) -> str:
        """Return the id of a device."""
        return self.placement.devices[device]

    def home(self, storage: Storage) -> Home:
        """Return the home of a weight or a state.

        Raises
        ------
        ContextError
            It was released, or another executor made it.
        """
        if storage not in self._kept:
            raise ContextError(
                f"{storage.label or storage.kind}: it was released, or is of another executor"
            )
        return self._kept[storage].home

    def pinned(self, storage: Storage) -> int | None:
        """Return the device that a caller chose for a result."""
        return self._pinned.get(storage)

    def pin(self, storage: Storage, device: str) -> None:
        """Have a result computed on a device.

        Raises
        ------
        DeviceError
            The executor has no such device.
        """
        if device not in self.placement.devices:
            raise DeviceError(f"to: device {device!r}, there are {list(self.placement.devices)}")
        self._pinned[storage] = self.placement.devices.index(device)

    def spec(self, storage: Storage) -> Spec:
        """Return the spec of a whole weight or state."""
        return self._kept[storage].spec

    def local(self, storage: Storage, device: int) -> Storage:
        """Return a weight as it is stored on a device, copied there if need be."""
        kept = self._kept[storage]
        if device == kept.home.devices[0]:
            return storage
        if device not in kept.copies:
            assert kept.data is not None
            kept.copies[device] = self.children[device].weight(
                kept.spec, kept.data, kept.label, alone=True
            )
        return kept.copies[device]

    def copy_state(self, state: Storage, device: int) -> None:
        """Begin to keep the values of a small state for another device."""
        kept = self._kept[state]
        if device not in kept.values:
            kept.values[device] = self._read_state(Node(kept.spec, state))

    def _read_state(self, state: Node) -> Array:
        """Return the stored values of a state."""
        return to_stored(self.read(state), state.spec.dtype)

    def state_copy(self, state: Storage, device: int) -> Array:
        """Return the values of a small state of another device."""
        return self._kept[state].values[device]

    def _first(self, storage: Storage) -> Executor:
        return self.children[self.home(storage).devices[0]]

    def _choose_home(self, label: str, nbytes: int, *, weight: bool) -> Home:
        """Return the home of a weight or a state, by its name."""
        small = nbytes <= (SMALL_NBYTES if weight else SMALL_STATE_NBYTES)
        placement = self.placement
        layer = find_layer(label)
        if layer is not None and layer != EMBEDDING and placement.layers:
            # Layers after the last are not computed.
            layer = min(layer, len(placement.layers) - 1)
            return Home((placement.layers[layer],), 1 if weight else 2, follows=small and weight)
        if not weight or layer != EMBEDDING:
            return Home((placement.output,), 0, follows=small)
        both = self.tied and label == TABLE
        first, last = placement.embedding, placement.output
        return Home((first, last) if both and first != last else (first,), 0, follows=small)

    # Storage.

    @uninterrupted
    def weight(self, spec: Spec, data: Pieces, label: str, *, alone: bool = False) -> Storage:
        """Store a weight on the device of its layer."""
        home = self._choose_home(label, spec.nbytes, weight=True)
        storage = self.children[home.devices[0]].weight(spec, data, label, alone=alone)
        self._kept[storage] = _Kept(spec, home, label, data)
        for device in home.devices[1:]:
            self.local(storage, device)
        return storage

    @uninterrupted
    def state(self, spec: Spec, label: str, *, zeroed: bool = True) -> Storage:
        """Return storage that outlives graphs, on the device of its layer."""
        home = self._choose_home(label, spec.nbytes, weight=False)
        # Blocks cannot be written from the host.
        home = replace(home, follows=home.follows and not spec.dtype.quantised)
        storage = self.children[home.devices[0]].state(spec, label, zeroed=zeroed)
        self._kept[storage] = _Kept(spec, home, label, None)
        return storage

    def adopt(self, storage: Storage, spec: Spec, device: int) -> None:
        """Take over a state that a recorded graph made on a device."""
        follows = spec.nbytes <= SMALL_STATE_NBYTES and not spec.dtype.quantised
        self._kept[storage] = _Kept(spec, Home((device,), 0, follows=follows), "", None)

    @uninterrupted
    def free(self, storage: Storage) -> None:
        """Release the bytes of a state, or of an `alone` weight; calling it again is harmless."""
        kept = self._kept.pop(storage, None)
        if kept is None:
            return
        self.drain()
        self.children[kept.home.devices[0]].free(storage)
        for device, copy in kept.copies.items():
            self.children[device].free(copy)

    def drop(self, handle: Any) -> None:  # noqa: ANN401
        """Release the bytes of a storage that was collected; never waits."""
        # Arrays of NumPy are freed with their last reference; buffers know their device.
        if isinstance(handle, tuple) and self._with_buffers is not None:
            self._with_buffers.drop(handle)

    def cached_nbytes(self, keep: int | None = None) -> int:
        """Return the released bytes kept for reuse, after reducing them to `keep`."""
        return sum(child.cached_nbytes(keep) for child in self.children)

    def read(self, node: Node) -> Array:
        """Return the values of a computed node or a weight."""
        if node.storage.kind != "weight":
            self.drain()
        return self._first(node.storage).read(node)

    def write(self, node: Node, data: bytes) -> None:
        """Write bytes into a dense state."""
        self.drain()
        self._settle(node.storage)
        self._first(node.storage).write(node, data)
        assert node.spec.dtype.numpy is not None
        given, first = np.frombuffer(data, node.spec.dtype.numpy), node.spec.offset
        for values in self._kept[node.storage].values.values():
            values.reshape(-1)[first : first + len(given)] = given

    def copy(self, pairs: Pairs) -> None:
        """Copy dense tensors of whole storages, through the host if they are on two devices."""
        self.drain()
        for source, target in pairs:
            one, other = (self._first(node.storage) for node in (source, target))
            if one is other and not self._kept[target.storage].values:
                one.copy([(source, target)])
            else:
                self.write(target, to_stored(one.read(source), source.spec.dtype).tobytes())

    # Graphs.

    @uninterrupted
    def record(
        self,
        outputs: Sequence[Node],
        *,
        shared: bool = True,
        times: int = 1,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> PlacedRecorded:
        """Record a graph for running, a part for each device it needs."""
        if unread:
            raise ContextError(
                "record: a graph over several devices takes no unread nodes; leave unread empty"
            )
        return PlacedRecorded(self, outputs, shared=shared, times=times, read=read)

    def record_pausable(self, outputs: Sequence[Node], *, at_once: bool = True) -> Pausable:
        """Record a graph of the device of the output head, which has the towers' weights.

        Raises
        ------
        ContextError
            A weight or a state of the graph is on another device.
        """
        device = self.placement.output
        for node in schedule(outputs):
            for operand in get_operands(node):
                if operand.storage.kind in ("weight", "state"):
                    self._require_on(operand, device)
        return self.children[device].record_pausable(outputs, at_once=at_once)

    def _require_on(self, node: Node, device: int) -> None:
        home = self.home(node.storage).devices[0]
        if home != device:
            raise ContextError(
                f"record_pausable: {node.storage.label or node.spec.shape} is on "
                f"{self.name(home)}, needs all weights on {self.name(device)}"
            )

    def latest_update(self, state: Storage) -> Update | None:
        """Return the latest run's update of a small state that other devices have copies of."""
        return self._kept[state].latest

    def note_update(self, state: Storage, update: Update) -> None:
        """Record a run's update of a small state, for later runs on other devices."""
        kept = self._kept.get(state)
        if kept is not None and kept.values:
            kept.latest = update

    def take_update(self, state: Storage, update: Update) -> None:
        """Apply a run's update to the copies of a small state."""
        kept = self._kept[state]
        if kept.taken is update:
            return
        try:
            stored = to_stored(update.run.values(update.part)[update.place], kept.spec.dtype)
        except BaseException:
            # The caller gets the error once; runs after that begin with what the copies hold.
            kept.latest = None
            raise
        for values in kept.values.values():
            values[...] = stored
        kept.taken = update

    def _settle(self, state: Storage) -> None:
        """Bring the copies of a small state up to date, before the host writes to them."""
        kept = self._kept[state]
        if kept.latest is not None:
            self.take_update(state, kept.latest)
            kept.latest = None

    def drain(self) -> None:
        """Submit the remaining parts of every run."""
        self.todo.drain()

    def fail(self, error: BaseException, device: int) -> BaseException:
        """Record that a run failed, since later runs cannot continue from its states."""
        if self._failure is None:
            subject = f"device {self.placement.devices[device]}: "
            named = not isinstance(error, DeviceError) or str(error).startswith(subject)
            if not named and error.args:
                error.args = (f"{subject}{error.args[0]}", *error.args[1:])
            self._failure = error
        return self._failure

    def require_working(self, *, report: bool = True) -> None:
        """Raise the error of an earlier run that nothing has waited for.

        Parameters
        ----------
        report : bool
            Whether the caller learns of it, so that further runs may begin.
        """
        error = self._failure
        if error is not None:
            if report:
                self.report(error)
            raise error

    def report(self, error: BaseException) -> None:
        """Allow further runs, after the caller got the error."""
        if error is self._failure:
            self.drain()
            self._failure = None
            for kept in list(self._kept.values()):
                if kept.latest is not None and kept.latest.run.error is not None:
                    kept.latest = None

    # Devices of other nodes may be opened again.

    @property
    def lost(self) -> DeviceLost | None:
        """Return the error of a device that was lost, if it may be opened again."""
        return next((each.lost for each in self._remote if each.lost is not None), None)

    def reopen(self) -> None:
        """Open lost devices again, with their weights; the contents of their caches are lost.

        Raises
        ------
        DeviceLost
            One cannot be opened.
        """
        self.drain()
        self._failure = None
        for kept in list(self._kept.values()):
            kept.latest = None
        for each in self._remote:
            if each.lost is not None:
                each.reopen()

    # Reports.

    def memory_report(self) -> str:
        """Return the use of memory, as a table for each device."""
        named = zip(self.placement.devices, self.children, strict=True)
        return "\n".join(f"{name}\n{child.memory_report()}" for name, child in named)

    def cache_nbytes(self) -> dict[str, int]:
        """Return the bytes of states, by label."""
        return sum_by_name(p for child in self.children for p in child.cache_nbytes().items())

    def graph_nbytes(self) -> int:
        """Return the bytes of intermediates, inputs and parameters."""
        return sum(child.graph_nbytes() for child in self.children)

    @uninterrupted
    def close(self) -> None:
        """Release everything and the devices; calling it again is harmless."""
        self.unclosed.silence()
        self.drain()
        self._kept.clear()
        for child in self.children:
            child.close()


def _join_infos(infos: Sequence[DeviceInfo], names: Sequence[str]) -> DeviceInfo:
    """Describe several devices as one, of the least of their kinds."""
    kind = min((info.kind for info in infos), key=_KINDS.index)
    title = " + ".join(dict.fromkeys(info.name for info in infos))
    return replace(infos[-1], id="+".join(names), name=title, kind=kind)


def _join_capabilities(each: Sequence[Capabilities]) -> Capabilities:
    """Return the last device's capabilities, with limits that hold on all devices."""
    limits = {
        name: min(getattr(one, name) for one in each)
        for name in ("max_binding_nbytes", "max_uniform_nbytes", "max_buffer_nbytes")
    }
    return replace(each[-1], **limits)
