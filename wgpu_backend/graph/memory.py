"""The memory plan: the slot of each intermediate, and the memory that the slots need.

A slot is a whole buffer, because the driver layer tracks whole buffers. Storages are placed from
the largest to the smallest into the first slot that is free over their whole life: "Efficient
Memory Management for Deep Neural Net Inference", Pisarchyk & Lee 2020, §4. A decoder then takes 4
to 29 per cent more than the largest sum of bytes alive at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wgpu_backend.graph.node import Launch, Node, Storage

# A thread of a kernel may read or write up to a vector beyond the last value.
SLACK = 32


@dataclass(frozen=True, slots=True)
class Life:
    """The first and last step at which a storage holds live data, both inclusive."""

    first: int
    last: int

    def overlaps(self, other: Life) -> bool:
        """Return whether both lives include some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The slots of every intermediate storage.

    Parameters
    ----------
    steps : tuple of (Node, Launch)
        The schedule, with in-place operands merged into the result.
    peak_nbytes : int
        What the slots take together.
    live_nbytes : int
        Largest sum of storages alive at one step: no plan can take less.
    """

    steps: tuple[tuple[Node, Launch], ...]
    slot_of: Mapping[Storage, int]
    slot_nbytes: tuple[int, ...]
    peak_nbytes: int
    live_nbytes: int


def lifetimes(
    steps: Sequence[tuple[Node, Launch]], outputs: Iterable[Node], roots: Mapping[Storage, Storage]
) -> dict[Storage, Life]:
    """Return the life of every intermediate storage, by the root it is merged into."""
    lives: dict[Storage, Life] = {}
    for step, (node, launch) in enumerate(steps):
        touched = [node.storage, *(n.storage for n in launch.operands.values())]
        for storage in (roots.get(s, s) for s in touched if s.kind == "intermediate"):
            known = lives.get(storage)
            lives[storage] = Life(known.first if known else step, step)
    for node in outputs:
        storage = roots.get(node.storage, node.storage)
        if storage in lives:
            # Outputs are read after the last step.
            lives[storage] = Life(lives[storage].first, len(steps))
    return lives


def plan(
    nodes: Sequence[Node], outputs: Sequence[Node], *, reuse: bool = True, granularity: int = 256
) -> MemoryPlan:
    """Place every intermediate of a schedule.

    Parameters
    ----------
    nodes : sequence of Node
        From `schedule`.
    outputs : sequence of Node
        Kept alive to the end.
    reuse : bool
        Let storages share slots and results overwrite operands; off gives each its own.
    granularity : int
        Slots are multiples of this many bytes.
    """
    steps, roots = _in_place(nodes, outputs) if reuse else ([(n, n.launch) for n in nodes], {})
    checked = [(n, launch) for n, launch in steps if launch is not None]
    lives = lifetimes(checked, outputs, roots)
    slots, sizes = _place(lives, reuse, granularity)
    slot_of = {s: slots[roots.get(s, s)] for s in [*lives, *roots]}
    return MemoryPlan(
        tuple(checked), slot_of, tuple(sizes), sum(sizes), _live_peak(lives, granularity)
    )


def _in_place(
    nodes: Sequence[Node], outputs: Sequence[Node]
) -> tuple[list[tuple[Node, Launch | None]], dict[Storage, Storage]]:
    """Merge results into operands that are last used there."""
    kept = {n.storage for n in outputs}
    last: dict[Storage, Node] = {}
    for node in nodes:
        for operand in node.dependencies():
            last[operand.storage] = node
    roots: dict[Storage, Storage] = {}
    steps: list[tuple[Node, Launch | None]] = []
    for node in nodes:
        launch = node.launch
        name = launch and _mergeable(node, launch, last, kept)
        if launch and name:
            operand = launch.operands[name].storage
            # Chains of merges end at the first storage, which has the slot.
            roots[node.storage] = roots.get(operand, operand)
            launch = _merge(launch, name)
        steps.append((node, launch))
    return steps, roots


def _mergeable(
    node: Node, launch: Launch, last: Mapping[Storage, Node], kept: set[Storage]
) -> str | None:
    for name in launch.in_place:
        operand = launch.operands[name]
        storage = operand.storage
        # A kernel cannot bind one buffer as read and as read_write.
        alone = sum(o.storage is storage for o in launch.operands.values()) == 1
        if (
            alone
            and storage.kind == "intermediate"
            and storage not in kept
            and last[storage] is node
            # Each thread must read and write the same places.
            and operand.spec == launch.out
            and storage.nbytes == node.storage.nbytes
        ):
            return name
    return None


def _merge(launch: Launch, name: str) -> Launch:
    operands = {n: o for n, o in launch.operands.items() if n != name}
    return replace(launch, operands=operands, choices={**launch.choices, name: "=y"})


def _place(
    lives: Mapping[Storage, Life], reuse: bool, granularity: int
) -> tuple[dict[Storage, int], list[int]]:
    sizes: list[int] = []
    tenants: list[list[Life]] = []
    slots: dict[Storage, int] = {}
    # The largest first: small storages fit into the gaps that large ones leave, not the reverse.
    for storage in sorted(lives, key=lambda s: (-s.nbytes, lives[s].first)):
        life = lives[storage]
        slot = next(
            (i for i, lived in enumerate(tenants) if reuse and not any(map(life.overlaps, lived))),
            len(sizes),
        )
        # No slot is free for that long.
        if slot == len(sizes):
            sizes.append(_round_up(storage.nbytes, granularity))
            tenants.append([])
        tenants[slot].append(life)
        slots[storage] = slot
    return slots, sizes


def _round_up(nbytes: int, granularity: int) -> int:
    return -(-(nbytes + SLACK) // granularity) * granularity


def _live_peak(lives: Mapping[Storage, Life], granularity: int) -> int:
    """Return the largest sum of bytes alive at one step."""
    change: dict[int, int] = {}
    for storage, life in lives.items():
        size = _round_up(storage.nbytes, granularity)
        change[life.first] = change.get(life.first, 0) + size
        # Lives include their last step.
        change[life.last + 1] = change.get(life.last + 1, 0) - size
    peak = now = 0
    for step in sorted(change):
        now += change[step]
        peak = max(peak, now)
    return peak
