"""Run the index arithmetic of one work group: counts of loops, and touched addresses.

All threads of the group go in step, an array entry each. Only the values are computed that
conditions depend on, and addresses if requested. Contents of buffers are unknown, except parameters
and those that `Setting.contents` assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_costs.nir import (
    Block,
    If,
    Instruction,
    Jump,
    Loop,
    Operand,
    Part,
    Program,
    conditions,
    instructions,
)
from benchmarks.gpu_costs.nir_memory import (
    ACCESSES,
    SHARED_LOADS,
    SHARED_STORES,
    Access,
    Mask,
    needed,
    shared_offset,
    stored_nbytes,
)
from benchmarks.gpu_costs.nir_ops import TYPES, Lanes, compute

Values = list[Lanes | None]
MOST_ITERATIONS = 1 << 14
DESCRIPTOR_NBYTES = 16
AMBIGUOUS = -1  # the block a thread came from, after an if whose condition is not known


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of a work group's run.

    Parameters
    ----------
    params : bytes
        Contents of the uniform binding.
    params_binding : int
        Its number.
    groups : (int, int, int)
        Size of the grid.
    subgroup : int
        Threads of a wave.
    contents : mapping of int to callable
        For bindings by number: from indices of words to what is assumed to lie there.
    """

    params: bytes
    params_binding: int
    groups: tuple[int, int, int]
    subgroup: int
    contents: Mapping[int, Callable[[Lanes], Lanes]] = field(default_factory=dict)


@dataclass(slots=True)
class Trips:
    """The iterations of loops, by loop and wave.

    Parameters
    ----------
    entered, completed : (loops, waves), int
        Times that the head was reached, and times that the body came to its end.
    known : bool
        False where a loop depends on data: it then counts once.
    """

    entered: NDArray[np.int64]
    completed: NDArray[np.int64]
    known: bool = True


@dataclass(frozen=True, slots=True)
class _Descriptor:
    binding: int


class Run:
    """A run of one work group, the first of the grid.

    Parameters
    ----------
    program : Program
    setting : Setting
    watch : callable or None
        Told of every load and store.
    most : int
        Turns after which a loop is left, for who wants to see accesses and not to count.
    """

    def __init__(
        self,
        program: Program,
        setting: Setting,
        watch: Callable[[Access], None] | None = None,
        most: int = MOST_ITERATIONS,
    ) -> None:
        self._program, self._setting, self._watch, self._most = program, setting, watch, most
        waves = -(-program.threads // setting.subgroup)
        self._lane = np.arange(waves * setting.subgroup, dtype=np.uint32)
        self._last = np.zeros(self._lane.size, np.int64)
        self._values: dict[int, Values | _Descriptor] = {}
        shape = (len(program.loops), waves)
        self.trips = Trips(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
        self._breaks: list[Mask] = []
        self._continues: list[Mask] = []
        self._loops: list[int] = []
        self._left_early: set[int] = set()
        self._active = self._lane < program.threads
        self._shared = np.zeros(program.shared_nbytes // 4 + 1, np.uint32)
        self._shared_known = np.zeros(self._shared.size, np.bool_)
        every = list(instructions(program.body))
        self._number = {id(each): number for number, each in enumerate(every)}
        self._needed = needed(every, conditions(program.body), addresses=watch is not None)
        self._writes_shared = any(
            each.op in SHARED_LOADS and each.result in self._needed for each in every
        )

    def run(self) -> Trips:
        """Run the group to its end."""
        with np.errstate(all="ignore"):
            self._parts(self._program.body, self._lane < self._program.threads)
        return self.trips

    def _parts(self, parts: Iterable[Part], active: Mask) -> Mask:
        """Run parts in sequence; return the threads that reach their end."""
        for part in parts:
            if not active.any():
                break
            match part:
                case Block():
                    self._block(part, active)
                case If():
                    active = self._if(part, active)
                case Loop():
                    active = self._loop(part, active)
                case Jump():
                    stack = self._breaks if part.kind == "break" else self._continues
                    stack[-1] |= active
                    active = np.zeros_like(active)
        return active

    def _if(self, part: If, active: Mask) -> Mask:
        condition = self._operand(part.condition)[0]
        if condition is not None:
            then = self._parts(part.then, active & condition)
            return then | self._parts(part.otherwise, active & ~condition)
        if self._loops and (_jumps(part.then) or _jumps(part.otherwise)):
            self._left_early.add(self._loops[-1])
            self.trips.known = False
        through = self._parts(part.then, active) | self._parts(part.otherwise, active)
        self._last[active] = AMBIGUOUS
        return through

    def _loop(self, loop: Loop, active: Mask) -> Mask:
        self._breaks.append(np.zeros_like(active))
        self._loops.append(loop.number)
        entered, completed = self.trips.entered[loop.number], self.trips.completed[loop.number]
        for _ in range(self._most):
            entered += self._waves(active)
            self._continues.append(np.zeros_like(active))
            active = self._parts(loop.body, active) | self._continues.pop()
            completed += self._waves(active)
            if not active.any() or loop.number in self._left_early:
                break
        else:
            self.trips.known = False
        self._left_early.discard(loop.number)
        self._loops.pop()
        return self._breaks.pop() | active

    def _waves(self, active: Mask) -> NDArray[np.int64]:
        """Return 1 for each wave that has an active thread."""
        return np.asarray(active.reshape(-1, self._setting.subgroup).any(1), np.int64)

    def _block(self, block: Block, active: Mask) -> None:
        phis = [each for each in block.instructions if each.op == "phi"]
        found = [(each, self._phi(each, active)) for each in phis if each.result in self._needed]
        for each, values in found:
            self._set(each, values)
        self._last[active], self._active = block.number, active
        for each in block.instructions[len(phis) :]:
            if self._watch is not None and each.op in ACCESSES:
                self._tell(each, active)
            if each.result in self._needed:
                self._set(each, self._result(each))
            elif self._writes_shared and each.op in SHARED_STORES:
                self._store_shared(each, active)

    def _set(self, each: Instruction, values: Values | _Descriptor) -> None:
        assert each.result is not None
        self._values[each.result] = values

    def _phi(self, phi: Instruction, active: Mask) -> Values:
        old = self._values.get(phi.result or 0)
        values = old if isinstance(old, list) else [None] * phi.width
        return [self._merged(phi, i, values[i], active) for i in range(phi.width)]

    def _merged(self, phi: Instruction, i: int, old: Lanes | None, active: Mask) -> Lanes | None:
        """Return one component of a phi: each active thread's from the block it came from."""
        zeros = np.zeros(active.size, TYPES[phi.bits])
        value, open_ = zeros if old is None else old, active.copy()
        for operand in phi.operands:
            lanes = active & (self._last == operand.block)
            if lanes.any():
                source = self._operand(operand)[i]
                if source is None:
                    return None
                value, open_ = np.where(lanes, source, value), open_ & ~lanes
        return None if open_.any() else value

    def _operand(self, operand: Operand) -> Values:
        found = self._values.get(operand.value)
        if found is None or isinstance(found, _Descriptor):
            return [None] * 16
        return found if operand.components is None else [found[i] for i in operand.components]

    def _result(self, each: Instruction) -> Values | _Descriptor:
        if each.op == "load_const":
            return [np.full(self._lane.size, c, TYPES[each.bits]) for c in each.constants]
        if each.op.startswith("vec"):
            return [self._operand(operand)[0] for operand in each.operands]
        if each.op.startswith("@"):
            return self._intrinsic(each)
        sources = [self._operand(operand) for operand in each.operands]
        if each.op in _UNPACKS:
            return _unpacked(sources[0][0], each.bits, each.width)
        return [compute(each.op, [source[i] for source in sources]) for i in range(each.width)]

    def _intrinsic(self, each: Instruction) -> Values | _Descriptor:
        if each.op == "@load_smem_amd":
            return self._descriptor(each)
        if each.op == "@resource_intel":
            return _Descriptor(int(each.fields["binding"]))
        if each.op in ("@load_ubo", "@load_ssbo"):
            return self._load(each)
        if each.op in SHARED_LOADS:
            return self._load_shared(each)
        known = _BUILTINS.get(each.op)
        values = known(self, each) if known is not None else [None] * each.width
        return [v if v is None else np.broadcast_to(v, self._lane.shape) for v in values]

    def _descriptor(self, each: Instruction) -> Values | _Descriptor:
        """Return the descriptor of a binding, the result of a load of the driver's own."""
        offset = self._operand(each.operands[1])[0]
        if offset is None:
            return list[Lanes | None]([None] * each.width)
        return _Descriptor(int(offset[0]) // DESCRIPTOR_NBYTES)

    def _load(self, each: Instruction) -> Values:
        binding, (offset, *_) = self._binding(each, 0), self._operand(each.operands[1])
        if offset is None or binding is None or each.bits != 32:
            return [None] * each.width
        words = offset // np.uint32(4)
        if each.op == "@load_ubo" and binding == self._setting.params_binding:
            params = np.frombuffer(self._setting.params, np.uint32)
            return [params[np.minimum(words + i, params.size - 1)] for i in range(each.width)]
        contents = self._setting.contents.get(binding)
        if contents is None:
            return [None] * each.width
        return [contents(words + np.uint32(i)).astype(np.uint32) for i in range(each.width)]

    def _binding(self, each: Instruction, place: int) -> int | None:
        found = self._values.get(each.operands[place].value)
        return found.binding if isinstance(found, _Descriptor) else None

    def _load_shared(self, each: Instruction) -> Values:
        places = self._shared_words(each, each.operands[0], each.width)
        if places is None or each.bits != 32:
            return [None] * each.width
        return [self._shared[p] if self._shared_known[p].all() else None for p in places]

    def _store_shared(self, each: Instruction, active: Mask) -> None:
        value = self._operand(each.operands[0])
        width = len(value) if len(value) < 16 else 1
        places = self._shared_words(each, each.operands[1], width)
        if places is None:
            self._shared_known[:] = False
            return
        for word, component in zip(places, value, strict=False):
            known = component is not None and component.dtype == np.uint32
            self._shared_known[word[active]] = known
            if known and component is not None:
                self._shared[word[active]] = component[active]

    def _shared_words(self, each: Instruction, at: Operand, width: int) -> list[Lanes] | None:
        """Return the word of workgroup memory of each component."""
        (address, *_) = self._operand(at)
        if address is None:
            return None
        steps = [shared_offset(each, i, width) for i in range(width)]
        most = self._shared.size - 1
        return [np.minimum((address + np.uint32(s)) // np.uint32(4), most) for s in steps]

    def _tell(self, each: Instruction, active: Mask) -> None:
        assert self._watch is not None
        kind = ACCESSES[each.op]
        (address, *_) = self._operand(each.operands[kind.address])
        binding = None if kind.binding is None else self._binding(each, kind.binding)
        base = int(each.fields.get("base", "0"))
        if address is not None:
            address = address.astype(np.int64) + base
        nbytes = each.bits * each.width // 8 if each.result is not None else stored_nbytes(each)
        place = -1 if kind.binding is not None and binding is None else binding
        number = self._number[id(each)]
        loop = self._loops[-1] if self._loops else None
        self._watch(Access(number, each.op, place, nbytes, address, active, loop))


_UNPACKS = ("unpack_32_4x8", "unpack_32_2x16", "unpack_64_2x32", "unpack_64_4x16")
_Builtin = Callable[[Run, Instruction], Values]
_BUILTINS: dict[str, _Builtin] = {
    "@load_workgroup_id": lambda run, _: [_one(0)] * 3,
    "@load_num_workgroups": lambda run, _: [_one(n) for n in run._setting.groups],
    "@load_vector_arg_amd": lambda run, _: [run._lane],
    "@load_local_invocation_index": lambda run, _: [run._lane],
    "@load_local_invocation_id": lambda run, _: [run._lane, _one(0), _one(0)],
    "@load_subgroup_id": lambda run, _: [run._lane // np.uint32(run._setting.subgroup)],
    "@load_subgroup_invocation": lambda run, _: [run._lane % np.uint32(run._setting.subgroup)],
    "@load_subgroup_size": lambda run, _: [_one(run._setting.subgroup)],
    "@load_num_subgroups": lambda run, _: [_one(run.trips.entered.shape[1])],
    "@load_simd_width_intel": lambda run, _: [_one(run._setting.subgroup)],
    "@load_push_constant": lambda run, each: _pushed(run, each),
    "@load_inline_data_intel": lambda run, each: _pushed(run, each),
    "@inverse_ballot": lambda run, each: [_ballot_bit(run, each)],
    "@read_first_invocation": lambda run, each: _first(run, each),
    "@reduce": lambda run, each: [_scanned(run, each)[0]],
    "@inclusive_scan": lambda run, each: [_scanned(run, each)[1]],
    "@exclusive_scan": lambda run, each: [_scanned(run, each)[2]],
}


def _pushed(run: Run, each: Instruction) -> Values:
    """Return the values that Intel's driver gives a shader: the grid's begin and size."""
    words: Values = [*[_one(0)] * 3, *(_one(n) for n in run._setting.groups)]
    first = int(each.fields.get("base", "0")) // 4
    return (words + [None] * 64)[first : first + each.width]


def _one(value: int) -> Lanes:
    return np.full(1, value, np.uint32)


def _ballot_bit(run: Run, each: Instruction) -> Lanes | None:
    mask = run._operand(each.operands[0])[0]
    lane = run._lane % np.uint32(run._setting.subgroup)
    return None if mask is None else (mask >> lane.astype(mask.dtype)) & mask.dtype.type(1) != 0


def _first(run: Run, each: Instruction) -> Values:
    """Return the value of each wave's first thread, which all threads share."""
    values = run._operand(each.operands[0])[: each.width]
    size = run._setting.subgroup
    return [None if v is None else np.repeat(v.reshape(-1, size)[:, 0], size) for v in values]


def _scanned(run: Run, each: Instruction) -> tuple[Lanes | None, Lanes | None, Lanes | None]:
    """Scan each wave's active threads: the sum, and the sums up to and before each thread."""
    value = run._operand(each.operands[0])[0]
    whole = each.fields.get("cluster_size", "0") == "0"
    if value is None or each.fields.get("reduction_op") != "iadd" or not whole:
        return (None, None, None)
    each_wave = np.where(run._active, value, 0).astype(value.dtype)
    each_wave = each_wave.reshape(-1, run._setting.subgroup)
    up_to = np.cumsum(each_wave, 1, dtype=value.dtype)
    total = np.repeat(up_to[:, -1], run._setting.subgroup)
    return total, up_to.ravel(), (up_to - each_wave).ravel()


def _unpacked(value: Lanes | None, bits: int, width: int) -> Values:
    if value is None:
        return [None] * width
    return [(value >> value.dtype.type(bits * i)).astype(TYPES[bits]) for i in range(width)]


def _jumps(parts: Iterable[Part]) -> bool:
    """Return whether a loop is left or continued from here, except inner loops."""
    return any(
        isinstance(part, Jump)
        or (isinstance(part, If) and (_jumps(part.then) or _jumps(part.otherwise)))
        for part in parts
    )
