"""Regular expressions with possessive groups, such as ``(?:a|"[^"]*")*+``, on every Python.

Up to 3.11.4, the one of Debian 12 among them, `re` counts a repetition of a possessive group that
fails after its beginning as matched (python/cpython#106052). There the same meaning is written as
an atomic group, ``(?>(?:a|"[^"]*")*)``, which takes three times as long.
"""

from __future__ import annotations

import re
import sys

HAS_POSSESSIVE_GROUPS = sys.version_info >= (3, 11, 5)
# An escape, a class with its brackets, a bracket, or another character.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]|[^()\\\[]", re.DOTALL)


def compile_possessive(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern that may have possessive groups."""
    return re.compile(pattern if HAS_POSSESSIVE_GROUPS else make_atomic(pattern), flags)


def make_atomic(pattern: str) -> str:
    """Replace possessive repetitions of groups by atomic groups; others stay."""
    parts: list[str] = []
    # The number of parts before each group that is open.
    opened: list[int] = []
    at = 0
    while found := _PART.match(pattern, at):
        at = found.end()
        parts.append(found[0])
        if found[0] == "(":
            opened.append(len(parts) - 1)
        elif found[0] == ")":
            begin = opened.pop()
            if pattern[at : at + 2] in ("*+", "++", "?+"):
                group = "".join(parts[begin:])
                parts[begin:] = [f"(?>{group}{pattern[at]})"]
                at += 2
    return "".join(parts)
