"""WGSL that a compiler would not survive, refused before it sees it.

The compiler inside wgpu descends recursively and overflows its stack, which ends the process, on
text that nests or chains deep enough; a driver can hang on a gigabyte of private memory. The bounds
here hold with a stack of 512 KiB, the smallest that any system gives a thread, and are far above
what a kernel needs.
"""

from __future__ import annotations

import re

from wgpu_backend.device.memory import human
from wgpu_backend.device.wgsl_sizes import array_nbytes, variable_nbytes
from wgpu_backend.device_info import Capabilities
from wgpu_backend.errors import ShaderError
from wgpu_backend.shader import Shader

MAX_CHARACTERS = 4 << 20
MAX_NESTING = 100
MAX_FUNCTIONS = 500
MAX_ELSE_IFS = 200
MAX_OPERATORS = 500
# A kernel's registers and what spills from them: lavapipe compiles 16 KiB in a second, 64 KiB in
# half a minute, and never comes back from a gigabyte.
MAX_PRIVATE_NBYTES = 16 << 10

_LINE_COMMENT = re.compile(r"//[^\n]*")
_BLOCK_COMMENT = re.compile(r"/\*(?:(?!/\*|\*/).)*\*/", re.DOTALL)
# `<` opens a template after a word without a space, which is how types are written.
_BRACKET = re.compile(r"[()\[\]{};]|(?<=\w)<(?!=)|>")
_STATEMENT = re.compile(r"[^;{}]+")
_OPERATOR = re.compile(r"[-~!&*|]")
_FUNCTION = re.compile(r"\bfn\b")
_ELSE_IF = re.compile(r"\belse\s+if\b")


def bare(text: str) -> str:
    """Return WGSL without its comments."""
    text = _LINE_COMMENT.sub("", text)
    while True:  # innermost block comments first: they nest
        shorter = _BLOCK_COMMENT.sub(" ", text)
        if shorter == text:
            return text
        text = shorter


def check_bounds(shader: Shader, capabilities: Capabilities) -> None:
    """Refuse WGSL that would overflow the compiler's stack or stall the driver's compiler.

    Raises
    ------
    ShaderError
        Naming the bound and the number found.
    """
    _hold(shader, "characters of WGSL", len(shader.text), MAX_CHARACTERS)
    text = bare(shader.text)
    statements = _STATEMENT.findall(text)
    _hold(shader, "levels of brackets", nesting(text), MAX_NESTING)
    _hold(shader, "functions", len(_FUNCTION.findall(text)), MAX_FUNCTIONS)
    _hold(shader, "times else if", len(_ELSE_IF.findall(text)), MAX_ELSE_IFS)
    operators = max((len(_OPERATOR.findall(s)) for s in statements), default=0)
    _hold(shader, "operators in one statement", operators, MAX_OPERATORS)
    spaces = variable_nbytes(text)
    private = max(spaces.private, array_nbytes(text))
    _hold_nbytes(shader, "private", private, MAX_PRIVATE_NBYTES)
    _hold_nbytes(shader, "workgroup", spaces.workgroup, capabilities.max_workgroup_nbytes)


def nesting(text: str) -> int:
    """Return how deep brackets nest; a statement's end closes the templates left open."""
    depth = deepest = templates = 0
    for match in _BRACKET.finditer(text):
        mark = match[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
        elif mark == "<":
            templates += 1
        elif mark == ">":
            templates = max(0, templates - 1)
        if mark in "{};":
            templates = 0
        deepest = max(deepest, depth + templates)
    return deepest


def _hold(shader: Shader, what: str, found: int, most: int) -> None:
    if found > most:
        raise ShaderError(f"{shader.label}: {found} {what}, at most {most} compile safely")


def _hold_nbytes(shader: Shader, space: str, found: int, most: int) -> None:
    if found > most:
        raise ShaderError(
            f"{shader.label}: {human(found)} of {space} memory, at most {human(most)} is allowed"
        )
