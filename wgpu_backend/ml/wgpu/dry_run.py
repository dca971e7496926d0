"""A dry run: the kernels that graphs need, found without a device's memory.

A DryRunExecutor replaces the executor while a model's weights are still loading. Graphs are
recorded as on the device, but without buffers. It reports the shaders that they need, so that they
can be compiled meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Protocol

import numpy as np

from wgpu_backend.device.device import Device
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ContextError
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
from wgpu_backend.graph.fusion import FindWrong, Rule, fuse_nodes
from wgpu_backend.graph.memory import MemoryPlan, plan
from wgpu_backend.graph.node import Node, Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import runs
from wgpu_backend.ml.executor import (
    Array,
    Executor,
    Pairs,
    Pieces,
    WholePausable,
    lasting_nodes,
    weight_values,
)
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.wgpu.dispatch import kernels
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ml.wgpu.storage import Part, intermediate

# As if each weight fitted one binding.
_WHOLE = (Part(0, 1, {}),)


class Recordable(Protocol):
    """A device that graphs can be recorded for: a `WgpuExecutor`, or an imaginary one."""

    @property
    def info(self) -> DeviceInfo:
        """The device."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """The features that kernels may use."""
        ...

    @property
    def rules(self) -> Mapping[str, Sequence[Rule]]:
        """The fusion rules."""
        ...

    def reserve_weight(self, spec: Spec, label: str) -> Storage:
        """Return storage of a weight without memory."""
        ...


class DryRunExecutor:
    """An executor without memory, which reports the shaders of graphs recorded with it.

    Parameters
    ----------
    executor : Recordable
        Whose device and fusion rules graphs are recorded for.
    found : callable
        Given each shader the first time it is needed.
    note : callable or None
        As ``find_wrong`` of `fuse_nodes`; notes the rules and ops of graphs.
    """

    def __init__(
        self,
        executor: Recordable,
        found: Callable[[Shader], object],
        note: FindWrong | None = None,
    ) -> None:
        self.info: DeviceInfo = executor.info
        self.capabilities: Capabilities = executor.capabilities
        self._rules = executor.rules
        self._note = note
        self._storage = executor.reserve_weight
        self._found = found
        self._seen: set[Shader] = set()
        self._sources: dict[Storage, tuple[DType, Pieces]] = {}

    def weight(self, spec: Spec, data: Pieces, label: str, *, alone: bool = False) -> Storage:
        """Return storage without memory; the bytes of `data` can be read."""
        storage = self._storage(spec, label)
        self._sources[storage] = (spec.dtype, data)
        return storage

    def state(self, spec: Spec, label: str, *, zeroed: bool = True) -> Storage:
        """Return storage without memory."""
        return Storage(spec.nbytes, "state", label)

    def free(self, storage: Storage) -> None:
        """Do nothing: there is no memory."""

    def record(
        self,
        outputs: Sequence[Node],
        *,
        shared: bool = True,
        times: int = 1,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> DryRunGraph:
        """Report the shaders of a graph."""
        recorded = self.plan(outputs, times, unread)
        for node, launch in recorded.plan.steps:
            assert node.call is not None
            for kernel in kernels(node.call.op, launch, self.capabilities, lambda _: _WHOLE):
                # Layers have the same shaders.
                if kernel.shader not in self._seen:
                    self._seen.add(kernel.shader)
                    self._found(kernel.shader)
        return recorded

    def record_pausable(self, outputs: Sequence[Node], *, at_once: bool = True) -> WholePausable:
        """Report the shaders of a graph."""
        return WholePausable(self.record(outputs))

    def plan(
        self, outputs: Sequence[Node], times: int = 1, unread: Sequence[Node] = ()
    ) -> DryRunGraph:
        """Plan a graph's memory without selecting its kernels."""
        scheduled, outputs = schedule([*outputs, *unread]), lasting_nodes(outputs, unread)
        nodes = fuse_nodes(
            scheduled, outputs, self._rules, self.capabilities, intermediate, runs, self._note
        )
        return DryRunGraph(scheduled, plan(nodes, outputs), [{} for _ in range(times)])

    def read(self, node: Node) -> Array:
        """Return the values of a weight.

        Raises
        ------
        ContextError
            The node is not a weight: a dry run computes nothing.
        """
        if node.storage not in self._sources:
            raise ContextError(
                f"read: the tensor {node.spec.shape} {node.spec.dtype} has no values, because a "
                "dry run computes nothing"
            )
        return weight_values(*self._sources[node.storage], node.spec)

    def write(self, node: Node, data: bytes) -> None:
        """Do nothing: there is no memory."""

    def copy(self, pairs: Pairs) -> None:
        """Do nothing: there is no memory."""

    def drop(self, handle: object) -> None:
        """Do nothing: there is no memory."""

    def cached_nbytes(self, keep: int | None = None) -> int:
        """Return 0."""
        return 0

    def memory_report(self) -> str:
        """Return an empty report."""
        return ""

    def cache_nbytes(self) -> dict[str, int]:
        """Return an empty mapping."""
        return {}

    def graph_nbytes(self) -> int:
        """Return 0."""
        return 0

    def close(self) -> None:
        """Forget the bytes of weights."""
        self._sources.clear()


class _PlacedDryRun(PlacedExecutor):
    """A dry run over the devices of a placed model."""

    def _read_state(self, state: Node) -> Array:
        """Return zeros: there is no memory."""
        return np.zeros(state.spec.shape, state.spec.dtype.numpy)


def make_dry_run(executor: Executor, found: Callable[[Device, Shader], object]) -> Executor:
    """Make the dry run of a device, or of several, of which at least one is no NumPy device.

    Parameters
    ----------
    found : callable
        Given each shader the first time that a device needs it.
    """

    def make(one: WgpuExecutor) -> DryRunExecutor:
        return DryRunExecutor(one, partial(found, one.device), one.trust and one.trust.note)

    if isinstance(executor, WgpuExecutor):
        return make(executor)
    assert isinstance(executor, PlacedExecutor)
    own = [child for child in executor.children if isinstance(child, WgpuExecutor)]
    children = [
        make(child)
        if isinstance(child, WgpuExecutor)
        # The NumPy device compiles nothing, whatever its part of a graph is planned for.
        else DryRunExecutor(own[0], lambda _: None)
        for child in executor.children
    ]
    made = _PlacedDryRun(children, executor.placement, tied=executor.tied)
    made.unclosed.silence()
    return made


@dataclass(slots=True)
class DryRunGraph:
    """A graph that cannot run."""

    scheduled: Sequence[Node]
    plan: MemoryPlan
    turns: list[dict[str, Array]]
    dispatches: int = 0

    @property
    def arrays(self) -> dict[str, Array]:
        """The inputs, which are empty."""
        return self.turns[0]

    def run(self, inputs: Mapping[str, Array]) -> NoReturn:
        """Raise ContextError.

        Raises
        ------
        ContextError
            Always.
        """
        raise ContextError(f"run: the graph of {sorted(inputs)} is of a dry run, without memory")

    def replay(self) -> NoReturn:
        """Raise ContextError, as `run`."""
        self.run(self.arrays)

    def replays(self, count: int) -> NoReturn:
        """Raise ContextError, as `run`."""
        self.run(self.turns[count - 1])

    def timed(self) -> list[tuple[str, str, float]]:
        """Return an empty list."""
        return []

    def keep(self, storages: Sequence[Storage]) -> None:
        """Do nothing: there are no results."""

    def replay_between(self, before: Pairs, after: Pairs) -> NoReturn:
        """Raise ContextError, as `run`."""
        self.run(self.arrays)

    def close(self) -> None:
        """Do nothing: there is no memory."""
