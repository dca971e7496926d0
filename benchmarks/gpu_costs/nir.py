"""A parser of NIR, the form in which Mesa hands a shader to its back end.

NIR is structured: blocks of instructions, ifs, and loops that are left by ``break``. Values are
assigned once. Only as much is kept as is needed to tell how often loops run and what addresses
loads and stores have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_BLOCK = re.compile(r"^(?:con |div )?block b(\d+):")
_DEFINED = re.compile(r"^(?:con |div )?(\d+)(?:x(\d+))?\s+%(\d+) = (@?\w+)!?(.*)$")
_EFFECT = re.compile(r"^(@\w+)(.*)$")
_OPERAND = re.compile(r"(?:b(\d+): )?%(\d+)(?:\.([xyzw]+|[a-p]+))?")
_FIELDS = re.compile(r"\((\w+=[^()]*)\)\s*$")
_IF = re.compile(r"^if %(\d+)(?:\.([xyzw]+|[a-p]+))?.*\{$")
_LOOP = re.compile(r"^(?:con |div )?loop \{$")
_SIZE = re.compile(r"^workgroup_size: (\d+), (\d+), (\d+)", re.MULTILINE)
_SHARED = re.compile(r"^shared_size: (\d+)", re.MULTILINE)
_COMPONENTS = "xyzw"


@dataclass(frozen=True, slots=True)
class Operand:
    """A value that is read: its number, its components, and for a phi the block it is from."""

    value: int
    components: tuple[int, ...] | None = None
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Parameters
    ----------
    op : str
        Intrinsics begin with ``@``.
    operands : tuple of Operand
    result : int or None
        Number of the value it defines.
    bits, width : int
        Of that value: bits of a component, and how many components.
    fields : dict of str to str
        Arguments of an intrinsic: ``base``, ``offset0``, …
    constants : tuple of int
        Components of a ``load_const``.
    """

    op: str
    operands: tuple[Operand, ...]
    result: int | None = None
    bits: int = 0
    width: int = 0
    fields: dict[str, str] = field(default_factory=dict[str, str])
    constants: tuple[int, ...] = ()


@dataclass(slots=True)
class Block:
    """Instructions that run in sequence."""

    number: int
    instructions: list[Instruction] = field(default_factory=list[Instruction])


@dataclass(slots=True)
class If:
    """Two arms, either of which may be empty."""

    condition: Operand
    then: list[Part] = field(default_factory=list)
    otherwise: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Loop:
    """A loop, numbered in the order of the text, inside `depth` others."""

    number: int
    depth: int
    body: list[Part] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Jump:
    """``break`` or ``continue``."""

    kind: str


Part = Block | If | Loop | Jump


@dataclass(frozen=True, slots=True)
class Program:
    """A compute shader.

    Parameters
    ----------
    body : list of Part
    threads : int
        Of a work group.
    shared_nbytes : int
        Workgroup memory.
    loops : tuple of Loop
        In the order of the text.
    """

    body: list[Part]
    threads: int
    shared_nbytes: int
    loops: tuple[Loop, ...]


def parse(text: str) -> Program:
    """Read one shader.

    Raises
    ------
    ValueError
        The text has no size of a work group, or its braces do not match.
    """
    size = _SIZE.search(text)
    if size is None:
        raise ValueError("NIR: the text has no line workgroup_size")
    reader = _Reader()
    reader.read(_body_lines(text))
    threads = int(size[1]) * int(size[2]) * int(size[3])
    shared = _SHARED.search(text)
    return Program(reader.body, threads, int(shared[1]) if shared else 0, tuple(reader.loops))


def instructions(parts: Sequence[Part]) -> Iterator[Instruction]:
    """Yield all instructions, including those of nested parts."""
    for part in parts:
        match part:
            case Block():
                yield from part.instructions
            case If():
                yield from instructions(part.then)
                yield from instructions(part.otherwise)
            case Loop():
                yield from instructions(part.body)
            case Jump():
                pass


def conditions(parts: Sequence[Part]) -> Iterator[Operand]:
    """Yield the conditions of all ifs."""
    for part in parts:
        if isinstance(part, If):
            yield part.condition
            yield from conditions(part.then)
            yield from conditions(part.otherwise)
        elif isinstance(part, Loop):
            yield from conditions(part.body)


def _body_lines(text: str) -> Iterator[str]:
    """Yield the lines of the entry point, without declarations and comments."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("impl "):
            break
    for line in lines:
        bare = line.strip()
        if bare and not bare.startswith("//"):
            yield bare


class _Reader:
    """A reader that builds the tree line by line; `_open` is the stack of lists being filled."""

    def __init__(self) -> None:
        self.body: list[Part] = []
        self.loops: list[Loop] = []
        self._open: list[list[Part]] = [self.body]
        self._ifs: list[If | None] = []

    def read(self, lines: Iterator[str]) -> None:
        """Read up to the brace that closes the entry point."""
        for line in lines:
            if line.startswith("}"):
                if not self._ifs:
                    return
                self._close(line)
            else:
                self._line(line)
        raise ValueError("NIR: the text ends inside a block")

    def _close(self, line: str) -> None:
        """Close an arm or a loop; ``} else {`` begins the other arm."""
        self._open.pop()
        ended = self._ifs[-1]
        if line.startswith("} else {") and ended is not None:
            self._open.append(ended.otherwise)
        else:
            self._ifs.pop()

    def _line(self, line: str) -> None:
        if found := _BLOCK.match(line):
            self._open[-1].append(Block(int(found[1])))
        elif found := _IF.match(line):
            branch = If(Operand(int(found[1]), _components(found[2])))
            self._begin(branch, branch.then, branch)
        elif _LOOP.match(line):
            depth = sum(each is None for each in self._ifs)
            loop = Loop(len(self.loops), depth)
            self.loops.append(loop)
            self._begin(loop, loop.body, None)
        elif line in ("break", "continue"):
            self._open[-1].append(Jump(line))
        elif (made := _instruction(line)) is not None:
            self._block().instructions.append(made)

    def _begin(self, part: Part, inside: list[Part], branch: If | None) -> None:
        self._open[-1].append(part)
        self._open.append(inside)
        self._ifs.append(branch)

    def _block(self) -> Block:
        last = self._open[-1][-1]
        if not isinstance(last, Block):
            raise ValueError("NIR: an instruction stands outside a block")
        return last


def _instruction(line: str) -> Instruction | None:
    if found := _DEFINED.match(line):
        bits, width, result, op, rest = found.groups()
        kind = (int(result), int(bits), int(width or 1))
        if op == "load_const":
            return Instruction(op, (), *kind, constants=_constants(rest, kind[2]))
        return Instruction(op, _operands(rest), *kind, fields=_fields(rest))
    if found := _EFFECT.match(line):
        return Instruction(found[1], _operands(found[2]), fields=_fields(found[2]))
    return None


def _operands(text: str) -> tuple[Operand, ...]:
    text = _FIELDS.sub("", text)
    return tuple(
        Operand(int(value), _components(swizzle), int(block) if block else None)
        for block, value, swizzle in _OPERAND.findall(text)
    )


def _components(swizzle: str | None) -> tuple[int, ...] | None:
    """Return the indices of components: ``xyzw``, or letters from ``a`` in longer vectors."""
    if not swizzle:
        return None
    if set(swizzle) <= set(_COMPONENTS):
        return tuple(_COMPONENTS.index(c) for c in swizzle)
    return tuple(ord(c) - ord("a") for c in swizzle)


def _fields(text: str) -> dict[str, str]:
    found = _FIELDS.search(text)
    return dict(each.split("=", 1) for each in found[1].split(", ") if "=" in each) if found else {}


def _constants(text: str, width: int) -> tuple[int, ...]:
    inside = text.strip().removeprefix("(").partition(")")[0]
    return tuple(_constant(word.split()[0]) for word in inside.split(",")[:width])


def _constant(word: str) -> int:
    return int(word == "true") if word in ("true", "false") else int(word, 16)
