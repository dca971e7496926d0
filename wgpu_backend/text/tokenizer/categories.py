"""Unicode categories of characters, in one fixed version.

llama.cpp's tokenizers use the tables of Unicode 15.1. Python's tables depend on the interpreter,
and those of regular expressions on the library; newer characters would be split differently.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("categories.txt")
_PROPERTY = re.compile(r"\\p\{([LMNPS])([a-z]?)\}")

WHITE_SPACE = frozenset(
    map(chr, (*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
              0x202F, 0x205F, 0x3000))
)  # fmt: skip
"""Characters with Unicode's property White_Space."""


def character_kind(code: int) -> str:
    """Return the general category of a code point.

    Parameters
    ----------
    code : int
        A code point.

    Returns
    -------
    str
        First letter of its category: ``L`` letter, ``M`` mark, ``N`` number, ``P`` punctuation,
        ``S`` symbol, ``Z`` separator, ``C`` control, format or private use; empty if no character
        is assigned.
    """
    starts, runs = _sorted_runs()
    _, last, kind = runs[max(bisect_right(starts, code) - 1, 0)]
    return kind if code <= last else ""


@cache
def pin_properties(expression: str) -> str:
    r"""Spell out the properties of a regular expression, so that every library reads them alike.

    Parameters
    ----------
    expression : str
        In Oniguruma's syntax; ``\p{L}``, ``\p{M}``, ``\p{N}``, ``\p{P}``, ``\p{S}`` and those
        with a second letter are spelled out, other properties stay.
    """
    return _PROPERTY.sub(_spell, expression)


def _spell(match: re.Match[str]) -> str:
    members = _members(match[1])
    return f"[{match[0]}&&{members}]" if match[2] else members


@cache
def _members(kind: str) -> str:
    return f"[{''.join(_span(first, last) for first, last in _ranges()[kind])}]"


def _span(first: int, last: int) -> str:
    return _char(first) if first == last else f"{_char(first)}-{_char(last)}"


def _char(code: int) -> str:
    return chr(code) if code > 0x7F else f"\\x{code:02X}"


@cache
def _sorted_runs() -> tuple[list[int], list[tuple[int, int, str]]]:
    runs = sorted(
        (first, last, kind) for kind, ranges in _ranges().items() for first, last in ranges
    )
    return [first for first, _, _ in runs], runs


@cache
def _ranges() -> dict[str, list[tuple[int, int]]]:
    lines = _FILE.read_text("ascii").splitlines()
    return {
        line[0]: [_ends(span) for span in line[2:].split()]
        for line in lines
        if not line.startswith("#")
    }


def _ends(span: str) -> tuple[int, int]:
    first, _, last = span.partition("-")
    return int(first, 16), int(last or first, 16)
