"""A recorded graph as plain data: steps before and after fusion, lifetimes and memory slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.memory import MemoryPlan, plan
from wgpu_backend.graph.node import Launch, Node, Storage
from wgpu_backend.graph.wgsl_source import stem
from wgpu_backend.kernels import select


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a step.

    Parameters
    ----------
    name : str
        Name of the shader binding.
    what : str
        ``%7`` for the result of step 7; else the storage's kind and label.
    nbytes : int
        Bytes of the bound range, which the step may read only in part.
    """

    name: str
    what: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """An op of a schedule.

    Parameters
    ----------
    nbytes : int
        Bytes of the result; 0 if it is written to a state.
    place : str
        ``%7``, or the state that is written.
    over : str
        Operand that the result overwrites; empty for none.
    made_of : tuple of str
        Ops before fusion that this one replaces; itself alone if nothing was fused.
    """

    op: str
    shader: str
    operands: tuple[Operand, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    place: str
    slot: int | None
    over: str
    made_of: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """The lifetime of an intermediate in its slot, from its first step to its last reader.

    Parameters
    ----------
    place : str
        ``%7`` for the result of step 7.
    """

    place: str
    slot: int
    first: int
    last: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a pass and the memory of their results.

    Parameters
    ----------
    peak_nbytes, live_nbytes : int
        Bytes of all slots together; most bytes alive at one step.
    """

    steps: tuple[Step, ...]
    lives: tuple[Life, ...]
    slot_nbytes: tuple[int, ...]
    peak_nbytes: int
    live_nbytes: int


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass of a model, before and after fusion.

    Parameters
    ----------
    dispatches : int
        Dispatches of one run; 0 on the NumPy device.
    """

    name: str
    dispatches: int
    before: Schedule
    after: Schedule


def describe_pass(
    name: str,
    scheduled: Sequence[Node],
    fused: MemoryPlan,
    outputs: Sequence[Node],
    dispatches: int,
    capabilities: Capabilities,
) -> Pass:
    """Describe a recorded graph.

    Parameters
    ----------
    scheduled : sequence of Node
        The schedule before fusion.
    fused : MemoryPlan
        The memory plan after fusion.
    capabilities : Capabilities
        Capabilities of the device, which decide the choice of shaders.
    """
    unfused = plan(scheduled, outputs)
    origins = _origins(scheduled, [node for node, _ in fused.steps])
    alone = [(_op(node),) for node in scheduled]
    before = _schedule(unfused, outputs, alone, capabilities)
    return Pass(name, dispatches, before, _schedule(fused, outputs, origins, capabilities))


def _op(node: Node) -> str:
    return node.call.op.name if node.call else "?"


def _schedule(
    memory: MemoryPlan,
    outputs: Sequence[Node],
    origins: Sequence[tuple[str, ...]],
    capabilities: Capabilities,
) -> Schedule:
    written: dict[Storage, int] = {}
    steps: list[Step] = []
    for number, (node, launch) in enumerate(memory.steps):
        place = memory.slot_of.get(node.storage)
        also = {launch.operands[name].storage: number for name in launch.writes}
        # `written` wins: a step that overwrites a value reads what an earlier step wrote.
        known = _Known(number, {**also, **written}, place, origins[number], capabilities)
        steps.append(_step(node, launch, known))
        written |= {**also, node.storage: number}
    lives = tuple(_lives(memory, outputs))
    return Schedule(tuple(steps), lives, memory.slot_nbytes, memory.peak_nbytes, memory.live_nbytes)


@dataclass(frozen=True, slots=True)
class _Known:
    """The facts of a step that are not in its node."""

    number: int
    written: Mapping[Storage, int]
    slot: int | None
    made_of: tuple[str, ...]
    capabilities: Capabilities


def _step(node: Node, launch: Launch, known: _Known) -> Step:
    # The node's own launch still has the operand that the plan merged into the result.
    whole = node.launch or launch
    operands = tuple(
        Operand(
            name, _place(n.storage, known.written), n.spec.shape, n.spec.dtype.name, n.spec.nbytes
        )
        for name, n in whole.operands.items()
    )
    into = launch.into
    return Step(
        _op(node),
        _shader(node, whole, known.capabilities),
        operands,
        launch.out.shape,
        launch.out.dtype.name,
        0 if into is not None else launch.out.nbytes,
        _place(into.storage, {}) if into is not None else f"%{known.number}",
        known.slot,
        ", ".join(name for name in whole.operands if name not in launch.operands),
        known.made_of,
    )


def _shader(node: Node, launch: Launch, capabilities: Capabilities) -> str:
    """Return the name of the shader that a device uses for a launch."""
    assert node.call is not None
    operation = node.call.op
    return stem(select(operation, launch, capabilities).shader or operation.shader)


def _place(storage: Storage, written: Mapping[Storage, int]) -> str:
    if storage.kind == "intermediate":
        return f"%{written[storage]}" if storage in written else "%?"
    return f"{storage.kind} {storage.label}".strip()


def _lives(memory: MemoryPlan, outputs: Iterable[Node]) -> Iterable[Life]:
    """Yield lifetimes in the order of their first steps; overwriting a value ends its lifetime."""
    first: dict[Storage, int] = {}
    last: dict[Storage, int] = {}
    for number, (node, launch) in enumerate(memory.steps):
        operands = (node.launch or launch).operands.values()
        for storage in (node.storage, *(n.storage for n in operands)):
            if storage in memory.slot_of:
                first.setdefault(storage, number)
                last[storage] = number
    # Outputs are read after the last step, so no later result may take their slots.
    last |= {n.storage: len(memory.steps) - 1 for n in outputs if n.storage in last}
    for storage, begin in first.items():
        yield Life(f"%{begin}", memory.slot_of[storage], begin, last[storage], storage.nbytes)


def _origins(before: Sequence[Node], after: Sequence[Node]) -> list[tuple[str, ...]]:
    """Return the ops that each step after fusion replaces, in order.

    A replacement keeps the storage of the node it replaces. A removed step was therefore fused into
    the step that now writes its first reader's storage, or into a new step that feeds that one.
    """
    left: dict[Storage, list[int]] = {}
    for number, node in enumerate(after):
        left.setdefault(node.storage, []).append(number)
    known = {node.storage for node in before}
    fresh = {storage: numbers[0] for storage, numbers in left.items() if storage not in known}
    made_of: list[list[str]] = [[] for _ in after]
    # Walking backwards visits the first reader of a storage last, so its entry remains.
    homes: dict[Storage, int | None] = {}
    for node in reversed(before):
        numbers = left.get(node.storage)
        home = numbers.pop() if numbers else homes.get(node.storage)
        if home is not None:
            home = home if numbers is not None else _nearest(node, home, after, fresh)
            made_of[home].insert(0, _op(node))
        homes |= {operand.storage: home for operand in node.dependencies()}
    return [tuple(names) or (_op(node),) for names, node in zip(made_of, after, strict=True)]


def _nearest(node: Node, home: int, after: Sequence[Node], fresh: Mapping[Storage, int]) -> int:
    """Return `home` or a step that feeds it: the one that shares most storages with `node`."""
    candidates = [home]
    # The list grows while it is read.
    for number in candidates:
        feeding = [fresh[d.storage] for d in after[number].dependencies() if d.storage in fresh]
        candidates += [each for each in feeding if each not in candidates]
    return max(
        candidates, key=lambda number: len(_find_buffers(node) & _find_buffers(after[number]))
    )


def _find_buffers(node: Node) -> set[Storage]:
    return {node.storage, *(each.storage for each in node.dependencies())}
