"""Limits on WGSL that would crash or stall a compiler, checked in advance.

The compiler inside wgpu descends recursively and overflows its stack, which ends the process, on
text that nests or chains deep enough; LLVM's rasteriser does on branches inside branches; a driver
can hang on a gigabyte of private memory. The bounds here hold with a stack of 512 KiB, the smallest
that any system gives a thread, and are far above what a kernel needs.
"""

from __future__ import annotations

import re

from wgpu_backend.device.memory import human
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.device.wgsl.nesting import Depth, bare, brackets, branches, expressions, nesting
from wgpu_backend.device.wgsl.switches import split_switches
from wgpu_backend.device.wgsl.variable_sizes import array_nbytes, variable_nbytes
from wgpu_backend.errors import ShaderError
from wgpu_backend.graph.capabilities import Capabilities

__all__ = ["bare", "check_bounds", "nesting"]

_LET = "put parts of it into variables"
MAX_CHARACTERS = 4 << 20
MAX_NESTING = 100
MAX_DECLARATIONS = 500
# A sum of 830 terms overflows 512 KiB.
MAX_EXPRESSION = 400
MAX_BRANCHES = 200
MAX_BRANCHES_LLVM = 64  # of 80 that the rasteriser has a place for
MAX_CASES = 500  # of 1000 that 512 KiB do not hold
# A kernel's registers and what spills from them: lavapipe compiles 16 KiB in a second, 64 KiB in
# half a minute, and never comes back from a gigabyte.
MAX_PRIVATE_NBYTES = 16 << 10

_DECLARATION = re.compile(r"[{}]|\b(?:fn|struct|alias|override|const|var)\b")
# What is shorter, or has fewer words, cannot be deeper: most texts need no closer look.
_END = re.compile(r"[;{}]")
_BRANCHES = re.compile(r"\b(?:if|case|default|return|break|continue)\b")
_CASE = re.compile(r"\bcase\b[^{};]*")


def check_bounds(shader: Shader, capabilities: Capabilities) -> None:
    """Refuse WGSL that would overflow the compiler's stack or stall the driver's compiler.

    Raises
    ------
    ShaderError
        Naming the bound, the number found, and the line where one line has it.
    """
    _hold(shader, "characters of WGSL", len(shader.text), MAX_CHARACTERS)
    text = bare(shader.text)
    _hold(shader, "levels of brackets", brackets(text), MAX_NESTING)
    if any(len(statement) > MAX_EXPRESSION for statement in _END.split(text)):
        _hold(shader, "levels in one expression", expressions(text), MAX_EXPRESSION, _LET)
    _hold(shader, "labels of cases", _labels(text), MAX_CASES, "look values up in an array")
    _hold(shader, "declarations", _declarations(text), MAX_DECLARATIONS)
    llvm = capabilities.software
    limit = MAX_BRANCHES_LLVM if llvm else MAX_BRANCHES
    if len(_BRANCHES.findall(text)) > limit:
        inside = branches(split_switches(text) if llvm else text, llvm=llvm)
        _hold(shader, "branches inside each other", inside, limit, "write a switch, or functions")
    spaces = variable_nbytes(text)
    private = max(spaces.private, array_nbytes(text))
    _hold_nbytes(shader, "private", private, MAX_PRIVATE_NBYTES)
    _hold_nbytes(shader, "workgroup", spaces.workgroup, capabilities.max_workgroup_nbytes)


def _labels(text: str) -> int:
    return sum(1 + found.count(",") for found in _CASE.findall(text))


def _declarations(text: str) -> int:
    """Count functions, types, constants and variables at the top level: each may need another."""
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
            f"{shader.label}: {human(found)} of {space} memory, at most {human(most)} is allowed"
        )
