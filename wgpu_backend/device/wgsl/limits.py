"""Limits on WGSL that would crash or stall a compiler, checked in advance.

The compiler inside wgpu descends recursively and overflows its stack, which ends the process, on
text that nests or chains deep enough; LLVM's rasteriser does on branches inside branches; a driver
can hang on a gigabyte of private memory. The bounds here hold with a stack of 512 KiB, the smallest
that any system gives a thread, and are far above what a kernel needs.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from wgpu_backend.device.memory import format_bytes
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.device.wgsl.nesting import (
    Depth,
    blank_comments,
    bracket_depth,
    bracket_levels,
    branch_depth,
    expression_depth,
)
from wgpu_backend.device.wgsl.switches import split_switches
from wgpu_backend.errors import ShaderError
from wgpu_backend.graph.capabilities import Capabilities

__all__ = ["blank_comments", "bracket_levels", "check_bounds"]

_LET = "put parts of it into variables"
MAX_CHARACTERS = 4 << 20
MAX_NESTING = 100
MAX_DECLARATIONS = 500
# A sum of 830 terms overflows 512 KiB.
MAX_EXPRESSION = 400
MAX_BRANCHES = 200
# llvmpipe has a stack for 80 nested branches.
MAX_BRANCHES_LLVM = 64
# A switch of 1,000 cases overflows 512 KiB.
MAX_CASES = 500
# A kernel's registers and what spills from them: lavapipe compiles 16 KiB in a second, 64 KiB in
# half a minute, and never comes back from a gigabyte.
MAX_PRIVATE_NBYTES = 16 << 10


def _any_word(*words: str) -> str:
    r"""Return a pattern of whole words that is searched for fast.

    A pattern that begins with ``\b`` is tried at every character, ten times slower than a search
    for first letters. So the boundary before a word is checked after it.
    """
    before = "".join(rf"(?<!\w{word})" for word in words)
    return rf"(?:{'|'.join(words)})\b{before}"


_DECLARATION = re.compile(
    rf"[{{}}]|{_any_word('fn', 'struct', 'alias', 'override', 'const', 'var')}"
)
# What is shorter, or has fewer words, cannot be deeper: most texts need no closer look.
_END = re.compile(r"[;{}]")
_BRANCHES = re.compile(_any_word("if", "case", "default", "return", "break", "continue"))
_CASE = re.compile(rf"{_any_word('case')}[^{{}};]*")


def check_bounds(shader: Shader, capabilities: Capabilities) -> None:
    """Refuse WGSL that would overflow the compiler's stack or stall the driver's compiler.

    Raises
    ------
    ShaderError
        Naming the bound, the number found, and the line where one line has it.
    """
    _hold(shader, "characters of WGSL", len(shader.text), MAX_CHARACTERS)
    text = blank_comments(shader.text)
    _hold(shader, "levels of brackets", bracket_depth(text), MAX_NESTING)
    if any(len(statement) > MAX_EXPRESSION for statement in _END.split(text)):
        _hold(shader, "levels in one expression", expression_depth(text), MAX_EXPRESSION, _LET)
    _hold(shader, "labels of cases", _labels(text), MAX_CASES, "look values up in an array")
    _hold(shader, "declarations", _declarations(text), MAX_DECLARATIONS)
    llvm = capabilities.software
    limit = MAX_BRANCHES_LLVM if llvm else MAX_BRANCHES
    if len(_BRANCHES.findall(text)) > limit:
        inside = branch_depth(split_switches(text) if llvm else text, llvm=llvm)
        _hold(shader, "branches inside each other", inside, limit, "write a switch, or functions")
    names = _Names.read(text)
    spaces = variable_nbytes(text, names)
    private = max(spaces.private, array_nbytes(text, names))
    _hold_nbytes(shader, "private", private, MAX_PRIVATE_NBYTES)
    _hold_nbytes(shader, "workgroup", spaces.workgroup, capabilities.max_workgroup_nbytes)


def _labels(text: str) -> int:
    return sum(1 + found.count(",") for found in _CASE.findall(text))


def _declarations(text: str) -> int:
    """Count functions, types, constants and variables at the top level; each may use others."""
    depth = count = 0
    for found in _DECLARATION.finditer(text):
        mark = found[0]
        depth += (mark == "{") - (mark == "}")
        count += not depth and mark not in "{}"
    return count


def _hold(shader: Shader, what: str, found: int | Depth, most: int, remedy: str = "") -> None:
    count = found if isinstance(found, int) else found.levels
    if count <= most:
        return
    line = shader.text.count("\n", 0, found.at) + 1 if isinstance(found, Depth) else 0
    known = 0 < line <= len(shader.origins)
    place = f"{shader.origins[line - 1]}: " if known else f"line {line}: " if line else ""
    instead = f"; {remedy}" if remedy else ""
    raise ShaderError(
        f"{shader.label}: {place}{count} {what}, at most {most} compile safely{instead}"
    )


def _hold_nbytes(shader: Shader, space: str, found: int, most: int) -> None:
    if found > most:
        raise ShaderError(
            f"{shader.label}: {format_bytes(found)} of {space} memory, at most "
            f"{format_bytes(most)} is allowed"
        )


# The memory of a text's variables. This reads declarations, not the language: a size that cannot be
# determined counts as nothing, and the compiler has the last word.

_CONSTANT = re.compile(_any_word("const", "override") + r"\s+(\w+)\s*(?::[^=;]+)?=\s*([^;]+);")
_ALIAS = re.compile(_any_word("alias") + r"\s+(\w+)\s*=\s*([^;]+);")
_STRUCT = re.compile(_any_word("struct") + r"\s+(\w+)\s*\{([^}]*)\}")
_VARIABLE = re.compile(
    _any_word("var") + r"\s*(?:<\s*(\w+)[^>]*>)?\s*\w+\s*(?::\s*([^=;{}]+))?(?:=\s*([^;{}]+))?"
)
_EXTERNAL = re.compile(_any_word("var") + r"\s*<\s*(?:storage|uniform|workgroup)\b[^;]*;")
_SUFFIX = re.compile(r"(?<=\d)[iu]\b")
_VECTOR = re.compile(r"vec([234])([fiuh]?)$")
_MATRIX = re.compile(r"mat([234])x([234])([fh]?)$")
_MAX_SHIFT = 64

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a // b,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True, slots=True)
class Spaces:
    """The bytes by address space.

    Parameters
    ----------
    private : int
        Of the largest variable of one invocation.
    workgroup : int
        Of all variables of a work group.
    """

    private: int
    workgroup: int


@dataclass(slots=True)
class _Names:
    """The constants, types and structs that one text declares."""

    constants: dict[str, int] = field(default_factory=dict[str, int])
    types: dict[str, str] = field(default_factory=dict[str, str])
    structs: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, text: str) -> _Names:
        names = cls(types=dict(_ALIAS.findall(text)), structs=dict(_STRUCT.findall(text)))
        for name, expression in _CONSTANT.findall(text):
            value = names.integer(expression)
            if value is not None:
                names.constants[name] = value
        return names

    def integer(self, expression: str) -> int | None:
        """Evaluate an integer expression of literals and constants, or None."""
        try:
            tree = ast.parse(_SUFFIX.sub("", expression.strip()), mode="eval")
            return self._evaluate(tree.body)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            return None

    def _evaluate(self, node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return self.constants.get(node.id)
        if not isinstance(node, ast.BinOp):
            return None
        left, right = self._evaluate(node.left), self._evaluate(node.right)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.LShift) and 0 <= right <= _MAX_SHIFT:
            return left << right
        compute = _OPERATORS.get(type(node.op))
        return compute(left, right) if compute else None

    def size(self, text: str, depth: int = 0) -> int:
        """Return the bytes of a type; 0 if unknown or not of a fixed size."""
        name, _, rest = text.strip().partition("<")
        name = name.strip()
        parts = _arguments(rest)
        if depth > 100:
            return 0
        if name in self.types:
            return self.size(self.types[name], depth + 1)
        if name in self.structs:
            fields = [f.partition(":")[2] for f in _split(self.structs[name])]
            return sum(self.size(f, depth + 1) for f in fields)
        if name == "array":
            count = self.integer(parts[1]) if len(parts) > 1 else None
            return (count or 0) * self.size(parts[0], depth + 1) if parts else 0
        return _plain_size(name, self.size(parts[0], depth + 1) if parts else 4)


def _plain_size(name: str, element: int) -> int:
    """Return the bytes of a scalar, vector, matrix or atomic of `element` bytes."""
    if vector := _VECTOR.match(name):
        return int(vector[1]) * (2 if vector[2] == "h" else element)
    if matrix := _MATRIX.match(name):
        return int(matrix[1]) * int(matrix[2]) * (2 if matrix[3] == "h" else element)
    return {"f16": 2, "f32": 4, "i32": 4, "u32": 4, "bool": 4, "atomic": 4}.get(name, 0)


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _arguments(text: str) -> list[str]:
    """Return the template arguments in what follows a `<`."""
    depth = 1
    for at, character in enumerate(text):
        depth += (character in "<([") - (character in ">)]")
        if depth == 0:
            return _split(text[:at])
    return []


def variable_nbytes(text: str, names: _Names | None = None) -> Spaces:
    """Return the memory of declared variables; `text` has no comments."""
    names = names or _Names.read(text)
    private = workgroup = 0
    for space, declared, initial in _VARIABLE.findall(text):
        nbytes = names.size(declared or initial)
        if space == "workgroup":
            workgroup += nbytes
        elif space in ("", "private", "function"):
            private = max(private, nbytes)
    return Spaces(private, workgroup)


def array_nbytes(text: str, names: _Names | None = None) -> int:
    """Return the size of the largest array value written outside of buffer declarations."""
    names = names or _Names.read(text)
    inner = _STRUCT.sub("", _ALIAS.sub("", _EXTERNAL.sub("", text)))
    starts = [match.start() for match in re.finditer(r"\barray\s*<", inner)]
    return max((names.size(inner[at : at + 400]) for at in starts), default=0)
