"""Python's notation of values and calls, as models write it: ``[weather(city="Oslo", days=2)]``."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import NamedTuple

_MAX_DEPTH = 100
_NAME = re.compile(r"[^\W\d][\w.\-]*")
_KEYWORD = re.compile(r"([^\W\d]\w*)\s*=(?!=)")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][\da-fA-F]+|(?:(?:0|[1-9][\d_]*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])"
)
_TEXT = re.compile(
    r"([rbuRBU]{0,2})(?:'''((?:[^'\\]|\\.|'(?!''))*+)'''|\"\"\"((?:[^\"\\]|\\.|\"(?!\"\"))*+)\"\"\""
    r"|'((?:[^'\\]|\\.)*+)'|\"((?:[^\"\\]|\\.)*+)\")",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([0-7]{1,3})|(.))", re.DOTALL
)
_ESCAPED = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": "",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_CONSTANTS = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip
_MAX_CHAR = 0x10FFFF


class PythonCall(NamedTuple):
    """A call as it is written."""

    name: str
    positional: list[object]
    named: dict[str, object]


def literal(text: str) -> object:
    """Value of a Python literal.

    Raises
    ------
    ValueError
        It is none.
    """
    reader = _Reader(text)
    value, at = reader.value(reader.spaces(0), 0)
    if reader.spaces(at) != len(text):
        raise ValueError("more than a value")
    return value


def python_calls(text: str) -> list[PythonCall]:
    """Calls in a list, or one after another.

    Raises
    ------
    ValueError
        There are none, or something else.
    """
    reader, found = _Reader(text), list[PythonCall]()
    at = reader.spaces(0)
    end = "]" if text.startswith("[", at) else ""
    at = reader.passed(at + len(end), ",;")
    while at < len(text) and not (end and text[at] == end):
        call, at = reader.call(at)
        found.append(call)
        at = reader.passed(at, ",;")
    if not found or not text.startswith(end, at) or reader.spaces(at + len(end)) < len(text):
        raise ValueError("no calls")
    return found


class Notation(ABC):
    """Reads values; each method takes a place and gives the value and the place after it."""

    passing = re.compile(r"\s*+")  # what may stand between values
    comma = re.compile(r"\s*+(,\s*+)?")

    def __init__(self, text: str) -> None:
        self.text = text

    @abstractmethod
    def value(self, at: int, depth: int) -> tuple[object, int]:
        """Read a value, within brackets this deep."""

    @abstractmethod
    def key(self, at: int, depth: int) -> tuple[str, int]:
        """Read a key; the place given is that of its value."""

    def spaces(self, at: int) -> int:
        """Place after spaces."""
        found = self.passing.match(self.text, at)
        return found.end() if found else at

    def mapping(self, at: int, depth: int) -> tuple[dict[str, object], int]:
        """Read keys and values after an opening brace."""
        found: dict[str, object] = {}
        at = self.spaces(at)
        while not self.text.startswith("}", at):
            key, at = self.key(at, depth)
            found[key], at = self.value(at, depth + 1)
            at = self.next(at, "}")
        return found, at + 1

    def list(self, at: int, end: str, depth: int) -> tuple[list[object], int]:
        """Read values after an opening bracket."""
        found: list[object] = []
        at = self.spaces(at)
        while not self.text.startswith(end, at):
            value, at = self.value(at, depth + 1)
            found.append(value)
            at = self.next(at, end)
        return found, at + 1

    def next(self, at: int, end: str) -> int:
        """Place after a comma, or of the end."""
        found = self.comma.match(self.text, at)
        assert found is not None
        at = found.end()
        if found[1] is None and not self.text.startswith(end, at):
            raise ValueError(f"no {end} at character {at}")
        return at


class _Reader(Notation):
    """Reads Python's notation."""

    passing = re.compile(r"(?:\s|#[^\n]*\n)*+")
    comma = re.compile(r"(?:\s|#[^\n]*\n)*+(,(?:\s|#[^\n]*\n)*+)?")

    def passed(self, at: int, marks: str) -> int:
        at = self.spaces(at)
        while at < len(self.text) and self.text[at] in marks:
            at = self.spaces(at + 1)
        return at

    def call(self, at: int) -> tuple[PythonCall, int]:
        name = _NAME.match(self.text, at)
        if name is None or not self.text.startswith("(", name.end()):
            raise ValueError("no name of a function")
        positional, named = list[object](), dict[str, object]()
        at = self.spaces(name.end() + 1)
        while not self.text.startswith(")", at):
            key = _KEYWORD.match(self.text, at)
            value, at = self.value(self.spaces(key.end() if key else at), 0)
            if key:
                named[key[1]] = value
            else:
                positional.append(value)
            at = self.next(at, ")")
        return PythonCall(name[0], positional, named), at + 1

    def value(self, at: int, depth: int) -> tuple[object, int]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH}")
        mark = self.text[at : at + 1]
        if mark == "{":
            return self.mapping(at + 1, depth)
        if mark in ("[", "("):
            return self.list(at + 1, "]" if mark == "[" else ")", depth)
        if found := _TEXT.match(self.text, at):
            return self.texts(found)
        if found := _NUMBER.match(self.text, at):
            return _number(found[0]), found.end()
        name = _NAME.match(self.text, at)
        if name is None or name[0] not in _CONSTANTS:
            raise ValueError(f"no value at character {at}")
        return _CONSTANTS[name[0]], name.end()

    def texts(self, found: re.Match[str]) -> tuple[str, int]:
        """A text; several are one."""
        made: list[str] = []
        while True:
            inner = next((each for each in found.groups()[1:] if each is not None), "")
            made.append(inner if "r" in found[1].lower() else _ESCAPE.sub(_unescaped, inner))
            at = self.spaces(found.end())
            again = _TEXT.match(self.text, at)
            if again is None:
                return "".join(made), found.end()
            found = again

    def key(self, at: int, depth: int) -> tuple[str, int]:
        key, at = self.value(at, depth + 1)
        at = self.spaces(at)
        if isinstance(key, dict | list) or not self.text.startswith(":", at):
            raise ValueError(f"no key at character {at}")
        return str(key), self.spaces(at + 1)


def _number(text: str) -> int | float | None:
    """A number; None for one that no double holds, which JSON has no place for."""
    try:
        return int(text, 0 if "x" in text.lower() else 10)
    except ValueError:
        value = float(text)
        return value if abs(value) < float("inf") else None


def _unescaped(found: re.Match[str]) -> str:
    coded = next((each for each in found.groups()[:3] if each), None)
    if coded or found[4]:
        code = int(coded, 16) if coded else int(found[4], 8)
        return chr(code) if code <= _MAX_CHAR and not 0xD800 <= code < 0xE000 else "\ufffd"
    return _ESCAPED.get(found[5], found[0])
