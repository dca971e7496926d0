"""WGSL that the compiler would not survive, refused before it sees it."""

from __future__ import annotations

import re

from wgpu_backend.device_info import Capabilities
from wgpu_backend.errors import ShaderError
from wgpu_backend.shader import Shader

MAX_NESTING = 100
MAX_TEXT = 4 << 20

_COMMENT = re.compile(r"//[^\n]*")


def check_bounds(shader: Shader, capabilities: Capabilities) -> None:
    """Refuse WGSL that would overflow the compiler's stack or stall the driver's compiler.

    Raises
    ------
    ShaderError
        Naming the bound and the number found.
    """
    if len(shader.text) > MAX_TEXT:
        raise ShaderError(
            f"{shader.label}: {len(shader.text)} characters of WGSL, at most {MAX_TEXT}"
        )
    depth = deepest = 0
    for character in _COMMENT.sub("", shader.text):
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    if deepest > MAX_NESTING:
        raise ShaderError(f"{shader.label}: brackets nest {deepest} deep, at most {MAX_NESTING}")
