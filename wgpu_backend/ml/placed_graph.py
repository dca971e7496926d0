"""Graphs over several devices, and the order in which parts of their runs are submitted.

A recorded graph is one recorded graph for each part, see `ml.partition`. What crosses is read back
by one device and written as an input of the next. Runs do not wait for each other: one device
begins the second while another still computes the first. Prompts in several passes thereby keep all
devices busy::

    vulkan:0   pass 0 │ pass 1 │ pass 2 │
    cpu               │ pass 0 │ pass 1 │ pass 2
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.dtypes import BF16, DType, f32_to_bf16
from wgpu_backend.graph.memory import MemoryPlan
from wgpu_backend.graph.node import Node, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.executor import (
    Array,
    Pairs,
    Recorded,
    Result,
    Sealable,
    require_turns,
    write_inputs,
)
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.partition import Partition

if TYPE_CHECKING:
    from wgpu_backend.ml.placed_executor import PlacedExecutor

# Runs that are not submitted on all devices yet: the first device is so many ahead of the last, or
# as many as there are devices and one more.
MOST_UNDER_WAY = 3


@dataclass(slots=True)
class Task:
    """A part of a run that waits for its turn.

    Parameters
    ----------
    needs : sequence of (Run, int)
        Parts of this run and of earlier ones whose values it reads.
    given : sequence of (ndarray, ndarray)
        Inputs of the device's graph and the values that the caller gave for them.
    seal : callable or None
        See `Sealable.seal`.
    """

    run: Run
    needs: Sequence[tuple[Run, int]]
    act: Callable[[], None]
    given: Sequence[tuple[Array, Array]]
    seal: Callable[[], bool] | None = None

    def stage(self) -> None:
        """Write the inputs that are known, once the device's earlier tasks are done."""
        for target, values in self.given:
            target[...] = values
        self.given = ()

    @property
    def is_ready(self) -> bool:
        """Return whether the task can run without waiting for a device."""
        for run, part in self.needs:  # noqa: SIM110  # a generator costs a call for each
            if run.known[part] is None and run.error is None:
                return False
        return True


class Schedule:
    """The tasks that runs have left, in order for each device.

    No thread works in the background: whoever submits or waits does what is due. A thread of its
    own would have to be woken for each part, which takes milliseconds on a busy machine.

    Each token comes here several times, so loops are in place of short functions.
    """

    def __init__(self, devices: int) -> None:
        self._queues: list[deque[Task]] = [deque() for _ in range(devices)]
        # Tasks of each device that were begun and wait for values of another one.
        self._begun = [0] * devices
        self._runs: deque[Run] = deque()
        self._most = max(MOST_UNDER_WAY, devices + 1)
        # Reentrant: a part that needs another one does that first.
        self._lock = threading.RLock()

    def _act(self, device: int) -> None:
        """Do a device's next task."""
        task = self._queues[device].popleft()
        self._begun[device] += 1
        try:
            if task.given:
                task.stage()
            task.act()
        finally:
            self._begun[device] -= 1

    def advance(self) -> None:
        """Do all tasks that need not wait."""
        with self._lock:
            done = True
            while done:
                done = False
                for device, queue in enumerate(self._queues):
                    while queue and queue[0].is_ready:
                        self._act(device)
                        done = True

    def bring_on(self, run: Run, part: int) -> None:
        """Advance other runs to their next devices, before waiting for a part.

        What they need is of earlier parts, which end about as soon. Without this, the next device
        would have nothing to do from the end of this part until the caller comes again. Tasks that
        have to wait get the inputs that are known, so that less is left to do then.
        """
        with self._lock:
            self.advance()
            for device, queue in enumerate(self._queues):
                if not queue:
                    continue
                must_wait = queue[0].run is run
                for each, at in queue[0].needs:
                    if at >= part or (each.results[at] is None and each.error is None):
                        must_wait = True
                        break
                if not must_wait:
                    self._act(device)
                # A task that was begun has its own inputs there.
                elif not self._begun[device]:
                    task = queue[0]
                    if task.given:
                        task.stage()
                    # This part's device records its next commands while it is awaited.
                    if task.seal is not None and device != run.devices[part] and task.seal():
                        task.seal = None

    def finish(self, run: Run, part: int, device: int) -> None:
        """Do a device's tasks until a part of a run is submitted."""
        with self._lock:
            while not run.is_submitted(part):
                self._act(device)

    def has_tasks(self, device: int) -> bool:
        """Return whether tasks of a device are left."""
        return bool(self._queues[device]) or self._begun[device] > 0

    def begin(self, run: Run, tasks: Sequence[tuple[int, Task]]) -> None:
        """Add a run's tasks after all others of their devices, and finish old runs.

        Tasks that need not wait are done.
        """
        with self._lock:
            for device, task in tasks:
                self._queues[device].append(task)
            self.advance()
            self._runs.append(run)
            while self._runs and (self._runs[0].is_done or len(self._runs) > self._most):
                self._runs.popleft().finish()

    @uninterrupted
    def drain(self) -> None:
        """Run all tasks that are left."""
        with self._lock:
            for device, queue in enumerate(self._queues):
                while queue:
                    self._act(device)
            self._runs.clear()


class Run:
    """One run of a placed graph, on its way through the parts.

    Parameters
    ----------
    devices : sequence of int
        The device of each part.

    Attributes
    ----------
    results : list of Result or None
        Of each part, once it was submitted.
    known : list of list of ndarray or None
        The values that each part reads back, once they are on the host.
    error : BaseException or None
        What keeps the parts without results from being submitted.
    """

    def __init__(self, executor: PlacedExecutor, devices: Sequence[int]) -> None:
        self.error: BaseException | None = None
        self._executor = executor
        self._todo = executor.todo
        self.devices = devices
        self.results: list[Result | None] = [None] * len(devices)
        self.known: list[list[Array] | None] = [None] * len(devices)

    def is_submitted(self, part: int) -> bool:
        """Return whether a part was submitted, or an error keeps it from that."""
        return self.results[part] is not None or self.error is not None

    @property
    def is_done(self) -> bool:
        """Return whether all parts were submitted."""
        return None not in self.results or self.error is not None

    def take(self, part: int, result: Result, *, known: bool) -> None:
        """Take the result of a part, whose values are known already on the NumPy device."""
        self.results[part] = result
        if known:
            self.known[part] = result.wait()

    def finish(self) -> None:
        """Submit all parts; errors are raised where the run is awaited, or the next one begins."""
        for part, device in enumerate(self.devices):
            self._todo.finish(self, part, device)

    def values(self, part: int) -> list[Array]:
        """Wait for the values that a part reads back, and return them."""
        found = self.known[part]
        if found is None:
            result = self.results[part]
            if result is None:
                self._todo.finish(self, part, self.devices[part])
                result = self.results[part]
            if result is None:
                assert self.error is not None
                raise self.error
            self._todo.bring_on(self, part)
            try:
                found = self.known[part] = result.wait()
            except Exception as error:
                # Here, since whoever needs the values may be a part of another device.
                raise self._executor.fail(error, self.devices[part])  # noqa: B904
        return found


@dataclass(frozen=True, slots=True)
class PlacedResult:
    """Outputs of a placed graph on their way to the host."""

    executor: PlacedExecutor
    run: Run
    places: Sequence[tuple[int, int]]
    parts: int

    @uninterrupted
    def wait(self) -> list[Array]:
        """Return the outputs in the order they were recorded."""
        try:
            found = [self.run.values(part) for part in range(self.parts)]
        except BaseException as error:
            self.executor.report(error)
            raise
        # The next run may have waited for a token of this one.
        self.executor.todo.advance()
        return [found[part][at] for part, at in self.places]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a placed graph, as its device recorded it."""

    device: int
    recorded: Recorded
    crossings: Mapping[str, tuple[int, int]]
    states: Mapping[str, Storage]
    updates: Mapping[Storage, int]
    # Inputs that come from the caller, and those from other parts that are stored as bf16.
    given: Sequence[tuple[str, Array]]
    rounded: Collection[str]
    # The parts that inputs come from.
    sources: Sequence[int]
    seal: Callable[[], bool] | None


class PlacedRecorded:
    """A graph as a sequence of recorded graphs, one for each part.

    Parameters
    ----------
    shared, times, read
        See `Executor.record`.

    Attributes
    ----------
    devices : tuple of int
        The device of each part, in their order.
    unused : collection of Storage
        Small states of other devices whose content the next runs do not use, so that they need not
        wait for what the runs before leave there.
    """

    def __init__(
        self,
        executor: PlacedExecutor,
        outputs: Sequence[Node],
        *,
        shared: bool,
        times: int,
        read: bool,
    ) -> None:
        self._executor = executor
        self._outputs = tuple(outputs)
        partition = Partition(outputs, executor, read=read)
        self.scheduled: Sequence[Node] = partition.scheduled
        self._results = partition.results
        self._part_of = partition.part_of
        self._local = {s: partition.parts[i].local[s] for s, i in self._part_of.items()}
        self._specs = {
            s: Spec.dense(n.launch.out.shape, n.launch.out.dtype)
            for n in partition.scheduled
            if n.launch is not None and n.launch.into is None
            for s in (n.storage,)
        }
        self._parts: list[_Part] = []
        self._between: PlacedRecorded | None = None
        self.unused: Collection[Storage] = ()
        try:
            for part in partition.parts:
                child = executor.children[part.device]
                recorded = child.record(part.reads, shared=shared, unread=part.writes)
                others = part.crossings.keys() | part.states.keys()
                arrays = recorded.arrays.items()
                given = [(name, array) for name, array in arrays if name not in others]
                for state in part.states.values():
                    executor.copy_state(state, part.device)
                rounded = {
                    name
                    for name, (at, place) in part.crossings.items()
                    if partition.parts[at].reads[place].spec.dtype == BF16
                }
                self._parts.append(
                    _Part(
                        part.device,
                        recorded,
                        part.crossings,
                        part.states,
                        part.updates,
                        given,
                        rounded,
                        [at for at, _ in part.crossings.values()],
                        recorded.seal if isinstance(recorded, Sealable) else None,
                    )
                )
        except BaseException:
            self.close()
            raise
        self.devices = tuple(part.device for part in self._parts)
        shapes = {name: array for part in self._parts for name, array in part.given}
        self.turns: list[dict[str, Array]] = [
            {name: np.zeros_like(array) for name, array in shapes.items()} for _ in range(times)
        ]
        self.plan = _join_plans([part.recorded.plan for part in self._parts])
        self.dispatches = sum(part.recorded.dispatches for part in self._parts)

    @property
    def arrays(self) -> dict[str, Array]:
        """The values of the named inputs for `replay`."""
        return self.turns[0]

    @uninterrupted
    def run(self, inputs: Mapping[str, Array]) -> PlacedResult:
        """Write the named inputs and run; does not wait."""
        write_inputs(self.arrays, inputs)
        return self.replay()

    def replay(self) -> PlacedResult:
        """Run with the current values of `arrays`; does not wait."""
        return self._start(self.turns[0])

    def replays(self, count: int) -> list[Result]:
        """Run `count` times, with the inputs in `turns[0]`, `turns[1]`, …; does not wait."""
        require_turns(self.turns, count)
        return [self._start(turn) for turn in self.turns[:count]]

    @uninterrupted
    def _start(self, turn: Mapping[str, Array]) -> PlacedResult:
        """Add a run to the queues of its devices."""
        executor = self._executor
        executor.require_working()
        run = Run(executor, self.devices)
        tasks: list[tuple[int, Task]] = []
        behind = {device for device in self.devices if executor.todo.has_tasks(device)}
        for index, part in enumerate(self._parts):
            # The first task of a device can take its inputs now. Others get copies, since the
            # caller writes the next run's while they wait.
            first = part.device not in behind
            behind.add(part.device)
            given: list[tuple[Array, Array]] = []
            for name, array in part.given:
                if first:
                    array[...] = turn[name]
                else:
                    given.append((array, turn[name].copy()))
            needs = [(run, source) for source in part.sources]
            updates: dict[Storage, Update] = {}
            for state in part.states.values():
                update = None if state in self.unused else executor.latest_update(state)
                if update is not None:
                    updates[state] = update
                    needs.append((update.run, update.part))
            act = partial(self._run_part, run, index, updates)
            task = Task(run, needs, act, given, part.seal)
            tasks.append((part.device, task))
        for index, part in enumerate(self._parts):
            for state, place in part.updates.items():
                executor.note_update(state, Update(run, index, place))
        executor.todo.begin(run, tasks)
        return PlacedResult(executor, run, self._results, len(self._parts))

    def _run_part(self, run: Run, index: int, updates: Mapping[Storage, Update]) -> None:
        """Submit a part once its inputs from other parts have arrived."""
        part, executor = self._parts[index], self._executor
        child = executor.children[part.device]
        try:
            executor.require_working(report=False)
            arrays = part.recorded.arrays
            for name, (source, place) in part.crossings.items():
                values = run.values(source)[place]
                arrays[name][...] = f32_to_bf16(values) if name in part.rounded else values
            for state, update in updates.items():
                executor.take_update(state, update)
            for name, state in part.states.items():
                arrays[name][...] = executor.state_copy(state, part.device)
            run.take(index, part.recorded.replay(), known=isinstance(child, NumpyExecutor))
        except BaseException as error:
            run.error = executor.fail(error, part.device)

    def timed(self) -> list[tuple[str, str, float]]:
        """Run and time each dispatch: op, shader and seconds."""
        self._executor.drain()
        self.replay().wait()
        # The inputs from other parts are those of that run.
        return [timing for part in self._parts for timing in part.recorded.timed()]

    @uninterrupted
    def keep(self, storages: Sequence[Storage]) -> None:
        """Turn these storages into states that outlive the run, then close it."""
        self._executor.drain()
        for index, part in enumerate(self._parts):
            own = [s for s in storages if self._part_of[s] == index]
            part.recorded.keep([self._local[s] for s in own])
            for storage in own:
                # Another one where an op wrote into a value of another device.
                storage.kind, storage.handle = "state", self._local[storage].handle
                self._executor.adopt(storage, self._specs[storage], part.device)
        self.close()

    def replay_between(self, before: Pairs, after: Pairs) -> None:
        """Copy tensors, run, and copy outputs through the host."""
        executor = self._executor
        executor.copy(before)
        if self._between is None:
            self._between = PlacedRecorded(
                executor, self._outputs, shared=False, times=1, read=True
            )
        values = self._between.run(self.arrays).wait()
        places = {id(node): at for at, node in enumerate(self._outputs)}
        for source, target in after:
            stored = to_stored(values[places[id(source)]], source.spec.dtype)
            executor.write(target, stored.tobytes())

    @uninterrupted
    def close(self) -> None:
        """Release the memory; calling it again is harmless."""
        self._executor.drain()
        for part in self._parts:
            part.recorded.close()
        if self._between is not None:
            self._between.close()


def to_stored(values: Array, dtype: DType) -> Array:
    """Return values that a device read back, as they are stored: bf16 as its bits."""
    return f32_to_bf16(values) if dtype == BF16 else values


def _join_plans(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """Return the memory plan of all parts; each part has slots of its own."""
    steps = tuple(step for plan in plans for step in plan.steps)
    slots: dict[Storage, int] = {}
    sizes: list[int] = []
    for plan in plans:
        slots |= {storage: slot + len(sizes) for storage, slot in plan.slot_of.items()}
        sizes += plan.slot_nbytes
    peak, live = (sum(getattr(p, n) for p in plans) for n in ("peak_nbytes", "live_nbytes"))
    return MemoryPlan(steps, slots, tuple(sizes), peak, live)


@dataclass(frozen=True, slots=True)
class Update:
    """An update of a small state by a part of a run, and its position in the part's outputs."""

    run: Run
    part: int
    place: int
