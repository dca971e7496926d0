"""Memory accesses of a NIR program, and the values that addresses and conditions depend on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_costs.nir import Instruction, Operand
from benchmarks.gpu_costs.nir_ops import Lanes

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store in one run.

    Parameters
    ----------
    number : int
        Place of the instruction in the text.
    op : str
    binding : int or None
        None is workgroup memory.
    nbytes : int
        Of one thread.
    addresses : (threads,) or None
        In bytes; None where they depend on what is unknown.
    active : (threads,), bool
    loop : int or None
        The innermost loop that it is in.
    """

    number: int
    op: str
    binding: int | None
    nbytes: int
    addresses: Lanes | None
    active: Mask
    loop: int | None


@dataclass(frozen=True, slots=True)
class Kind:
    """The operands of an access that are its address and its binding."""

    address: int
    binding: int | None


ACCESSES = {
    "@load_ssbo": Kind(1, 0),
    "@store_ssbo": Kind(2, 1),
    "@load_shared": Kind(0, None),
    "@load_shared2_amd": Kind(0, None),
    "@store_shared": Kind(1, None),
    "@store_shared2_amd": Kind(1, None),
}
SHARED_LOADS = ("@load_shared", "@load_shared2_amd")
SHARED_STORES = ("@store_shared", "@store_shared2_amd")


def stored_nbytes(each: Instruction) -> int:
    """Return the bytes that a store writes, by its mask of components of 32 bits each."""
    mask = each.fields.get("wrmask", "xy" if "2_amd" in each.op else "x")
    return 4 * len(mask)


def shared_offset(each: Instruction, i: int, width: int) -> int:
    """Return the byte offset of component `i` of an access to workgroup memory."""
    if "2_amd" not in each.op:
        return int(each.fields.get("base", "0")) + 4 * i
    half = width // 2
    step = 4 * half * (64 if each.fields.get("st64") == "1" else 1)
    return int(each.fields[f"offset{i // half}"]) * step + 4 * (i % half)


def needed(
    every: Iterable[Instruction], conditions: Iterable[Operand], *, addresses: bool
) -> set[int]:
    """Return the values that conditions, and addresses if requested, depend on."""
    every = list(every)
    made = {each.result: each for each in every if each.result is not None}
    waiting = [operand.value for operand in conditions]
    if addresses:
        waiting += [o.value for each in every for o in address_operands(each)]
    stores = [o.value for each in every if each.op in SHARED_STORES for o in each.operands]
    found: set[int] = set()
    while waiting:
        value = waiting.pop()
        if value in found or value not in made:
            continue
        found.add(value)
        waiting += [operand.value for operand in made[value].operands]
        if made[value].op in SHARED_LOADS:
            waiting += stores
            stores = []
    return found


def address_operands(each: Instruction) -> list[Operand]:
    """Return the operands of an access's address; none for other instructions."""
    kind = ACCESSES.get(each.op)
    if kind is None:
        return []
    places = [kind.address] if kind.binding is None else [kind.address, kind.binding]
    return [each.operands[place] for place in places]
