"""Assembly of ACO and Intel's compiler: blocks, loops and executed instructions per lane.

A static count says little about a kernel whose loop is a tenth of its text and nine tenths of its
time. So each block is weighted by how often it runs: once outside of loops, else as often as the
trips of its loop (`nir_run.Trips`, computed from the launch's sizes). Loops of the assembly
are those of the NIR it was made of, in the same order. Within a loop, blocks up to the first that
may leave it run once for every time that its head is reached, the others once for every time that
the body is completed. Both arms of a branch count: a wave whose lanes differ runs both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu_costs.nir_run import Trips

_LABEL = re.compile(r"^(BB\d+):")
_BRANCH = re.compile(r"^s_c?branch\S*\s+(BB\d+)")
_INTEL_LABEL = re.compile(r"^(LABEL\d+):")
_INTEL_INSTRUCTION = re.compile(r"^(?:\([^)]*\)\s*)?[a-z][\w.]*(?: \w+)?\(\d+\)")
_INTEL_BRANCH = re.compile(r"^(?:\([^)]*\)\s*)?(?:while|break|cont)\(\d+\).*\s(LABEL\d+)\b")
_REPEATED = re.compile(r"^\(then repeated (\d+) times\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A label and the instructions after it."""

    label: str
    instructions: tuple[str, ...]

    @property
    def targets(self) -> list[str]:
        """Return the labels that it may branch to."""
        found = (_BRANCH.match(each) or _INTEL_BRANCH.match(each) for each in self.instructions)
        return [each[1] for each in found if each]


@dataclass(frozen=True, slots=True)
class Loop:
    """The blocks from `first` to `last`; `leaves` is the first that may branch out of them."""

    first: int
    last: int
    leaves: int


def blocks(text: str) -> list[Block]:
    """List the blocks of a disassembly, in order."""
    return _intel_blocks(text) if "{ align" in text else _aco_blocks(text)


def _intel_blocks(text: str) -> list[Block]:
    """Split at labels and after branches; continuation lines begin with blanks."""
    label, body, found = "start", list[str](), list[Block]()
    for line in text.splitlines():
        if head := _INTEL_LABEL.match(line):
            found.append(Block(label, tuple(body)))
            label, body = head[1], []
        elif _INTEL_INSTRUCTION.match(line):
            body.append(line)
            if _INTEL_BRANCH.match(line):
                found.append(Block(label, tuple(body)))
                label, body = "", []
    return [*found, Block(label, tuple(body))]


def _aco_blocks(text: str) -> list[Block]:
    label, body = "start", list[str]()
    found: list[Block] = []
    for line in text.splitlines():
        bare = line.split(";")[0].split("//")[0].strip()
        if head := _LABEL.match(bare):
            found.append(Block(label, tuple(body)))
            label, body = head[1], []
        elif (again := _REPEATED.match(bare)) and body:
            body += [body[-1]] * int(again[1])
        elif bare:
            body.append(bare)
    return [each for each in [*found, Block(label, tuple(body))] if each.label != "start"]


def loops(of: Sequence[Block]) -> list[Loop]:
    """List loops in the order of their heads: the spans of backward branches."""
    at = {block.label: i for i, block in enumerate(of)}
    last: dict[int, int] = {}
    for i, block in enumerate(of):
        for target in block.targets:
            if at.get(target, len(of)) <= i:
                last[at[target]] = i
    return [Loop(first, end, _leaves(of, at, first, end)) for first, end in sorted(last.items())]


def _leaves(of: Sequence[Block], at: dict[str, int], first: int, last: int) -> int:
    for i in range(first, last + 1):
        if any(not first <= at.get(target, len(of)) <= last for target in of[i].targets):
            return i
    return last


def depths(of: Sequence[Loop]) -> list[int]:
    """Count the loops around each loop."""
    return [sum(o.first < each.first and each.last <= o.last for o in of) for each in of]


def executed(text: str, trips: Trips, nesting: Sequence[int]) -> float | None:
    """Count the instructions that a lane executes, from the kernel's beginning to its end.

    Parameters
    ----------
    text : str
        Disassembly.
    trips : Trips
    nesting : sequence of int
        Depth of each of the loops that `trips` is about.

    Returns
    -------
    float or None
        Mean over the waves of a work group, every line of the disassembly being one instruction,
        also one that only waits, and one of two that issue together. None where a loop depends on
        data, where loops are not those of the NIR, and where there is no text.
    """
    parsed = blocks(text)
    found = loops(parsed)
    if not parsed or not trips.known or depths(found) != list(nesting):
        return None
    entered, completed = trips.entered.mean(1), trips.completed.mean(1)
    total = 0.0
    for i, block in enumerate(parsed):
        inside = [k for k, each in enumerate(found) if each.first <= i <= each.last]
        times = 1.0
        if inside:
            k = min(inside, key=lambda k: found[k].last - found[k].first)
            times = entered[k] if i <= found[k].leaves else completed[k]
        total += float(times) * len(block.instructions)
    return total


def static(text: str) -> int:
    """Count the instructions of the text."""
    return sum(len(block.instructions) for block in blocks(text))
