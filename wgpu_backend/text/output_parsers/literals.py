"""A parser of Python's notation of calls, such as ``[weather(city="Oslo", days=2)]``."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wgpu_backend.text.output_parsers.patterns import compile_possessive

_MAX_DEPTH = 100
_NAME = re.compile(r"[^\W\d][\w.\-]*")
_KEYWORD = re.compile(r"([^\W\d]\w*)\s*=(?!=)")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][\da-fA-F]+|(?:(?:0|[1-9][\d_]*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])"
)
# Characters of a string up to its quotation mark, in runs: one at a time takes four times as long.
_SINGLE = r"[^'\\]*+(?:\\.[^'\\]*+)*+"
_DOUBLE = _SINGLE.replace("'", '"')
_TEXT = compile_possessive(
    r"([rbuRBU]{0,2})(?:'''((?:[^'\\]|\\.|'(?!''))*+)'''|\"\"\"((?:[^\"\\]|\\.|\"(?!\"\"))*+)\"\"\""
    rf"|'({_SINGLE})'|\"({_DOUBLE})\")",
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
_FUNCTION = r"([^\W\d][\w.\-]*+)\(\s*+"
_LIST = re.compile(rf"\s*+\[\s*+{_FUNCTION}")
_NEXT_CALL = re.compile(rf"\)\s*+,\s*+{_FUNCTION}")
_LIST_END = re.compile(r"\)\s*+\]")
# Not before another string, which would be joined to it.
_ARGUMENT = compile_possessive(
    rf"([^\W\d]\w*+)\s*+=\s*+(?:'({_SINGLE})'(?!')|\"({_DOUBLE})\"(?!\")"
    r"|(-?(?:0|[1-9]\d{0,15}+))|(True|False|None|true|false|null))\s*+(?:,\s*+|(?=\)))",
    re.DOTALL,
)


class PythonCall(NamedTuple):
    """A call with positional and named arguments."""

    name: str
    positional: list[object]
    named: dict[str, object]


def parse_literal(text: str) -> object:
    """Parse a Python literal.

    Raises
    ------
    ValueError
        It is not a literal.
    """
    reader = _Reader(text)
    value, at = reader.value(reader.skip_spaces(0), 0)
    if reader.skip_spaces(at) != len(text):
        raise ValueError("text after the value")
    return value


def parse_calls_in_python(
    text: str, *, parameters: Mapping[str, Sequence[str]] | None = None
) -> list[PythonCall]:
    """Parse calls in a list, or in sequence.

    Parameters
    ----------
    text : str
        The calls.
    parameters : mapping or None
        Names of parameters by function. With them, a string may contain its own quotation mark
        unescaped, as LFM2.5's template writes it.

    Raises
    ------
    ValueError
        There are no calls, or something else.
    """
    reader = _Reader(text) if parameters is None else _UnescapedReader(text, parameters)
    found: list[PythonCall] = []
    at = reader.skip_spaces(0)
    end = "]" if text.startswith("[", at) else ""
    at = reader.skip_marks(at + len(end), ",;")
    while at < len(text) and not (end and text[at] == end):
        call, at = reader.call(at)
        found.append(call)
        at = reader.skip_marks(at, ",;")
    if not found or not text.startswith(end, at) or reader.skip_spaces(at + len(end)) < len(text):
        raise ValueError("the text has no calls")
    return found


def match_simple_calls(text: str, at: int) -> tuple[list[PythonCall], int] | None:
    """Parse a list of calls that begins at a place; return them and the place after the list.

    This is `parse_calls_in_python` in few steps for named arguments that are strings, integers or
    constants. The result is None if there is anything else.
    """
    listed, found = _LIST.match(text, at), list[PythonCall]()
    while listed is not None:
        named: dict[str, object] = {}
        at = listed.end()
        while (argument := _ARGUMENT.match(text, at)) is not None:
            key, single, double, number, constant = argument.groups()
            string = double if single is None else single
            if string is not None:
                named[key] = _unescape_all(string) if "\\" in string else string
            else:
                named[key] = int(number) if constant is None else _CONSTANTS[constant]
            at = argument.end()
        found.append(PythonCall(listed[1], [], named))
        if not text.startswith(")", at):
            return None
        listed = _NEXT_CALL.match(text, at)
    end = _LIST_END.match(text, at)
    return (found, end.end()) if found and end else None


def _unescape_all(text: str) -> str:
    if "\\\\" not in text:
        # The usual escapes, without a call for each; others leave a backslash.
        made = text.replace("\\n", "\n").replace("\\'", "'").replace('\\"', '"')
        if "\\" not in made:
            return made
    return _ESCAPE.sub(_unescape, text)


class Notation(ABC):
    """A parser of values; each method takes a place, and returns a value and the place after it."""

    # White space between values, without backtracking.
    passing = re.compile(r"\s*+")
    comma = re.compile(r"\s*+(,\s*+)?")

    def __init__(self, text: str) -> None:
        self.text = text

    @abstractmethod
    def value(self, at: int, depth: int) -> tuple[object, int]:
        """Read a value at this depth of brackets."""

    @abstractmethod
    def key(self, at: int, depth: int) -> tuple[str, int]:
        """Read a key; the returned place is that of its value."""

    def skip_spaces(self, at: int) -> int:
        """Return the place after spaces."""
        found = self.passing.match(self.text, at)
        return found.end() if found else at

    def mapping(self, at: int, depth: int) -> tuple[dict[str, object], int]:
        """Read keys and values after an opening brace."""
        found: dict[str, object] = {}
        at = self.skip_spaces(at)
        while not self.text.startswith("}", at):
            key, at = self.key(at, depth)
            found[key], at = self.value(at, depth + 1)
            at = self.next(at, "}")
        return found, at + 1

    def list(self, at: int, end: str, depth: int) -> tuple[list[object], int]:
        """Read values after an opening bracket."""
        found: list[object] = []
        at = self.skip_spaces(at)
        while not self.text.startswith(end, at):
            value, at = self.value(at, depth + 1)
            found.append(value)
            at = self.next(at, end)
        return found, at + 1

    def next(self, at: int, end: str) -> int:
        """Return the place after a comma, or of the end."""
        found = self.comma.match(self.text, at)
        assert found is not None
        at = found.end()
        if found[1] is None and not self.text.startswith(end, at):
            raise ValueError(f"no {end} at character {at}")
        return at


class _Reader(Notation):
    """A parser of Python's notation."""

    passing = compile_possessive(r"(?:\s|#[^\n]*\n)*+")
    comma = compile_possessive(r"(?:\s|#[^\n]*\n)*+(,(?:\s|#[^\n]*\n)*+)?")

    def skip_marks(self, at: int, marks: str) -> int:
        at = self.skip_spaces(at)
        while at < len(self.text) and self.text[at] in marks:
            at = self.skip_spaces(at + 1)
        return at

    def call(self, at: int) -> tuple[PythonCall, int]:
        name = _NAME.match(self.text, at)
        if name is None or not self.text.startswith("(", name.end()):
            raise ValueError("a call has no function name")
        positional, named = list[object](), dict[str, object]()
        at = self.skip_spaces(name.end() + 1)
        while not self.text.startswith(")", at):
            key = _KEYWORD.match(self.text, at)
            value, at = self.argument(name[0], self.skip_spaces(key.end() if key else at))
            if key:
                named[key[1]] = value
            else:
                positional.append(value)
            at = self.next(at, ")")
        return PythonCall(name[0], positional, named), at + 1

    def argument(self, function: str, at: int) -> tuple[object, int]:
        """Read the value of an argument of a function."""
        del function
        return self.value(at, 0)

    def value(self, at: int, depth: int) -> tuple[object, int]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH}")
        mark = self.text[at : at + 1]
        if mark == "{":
            return self.mapping(at + 1, depth)
        if mark in ("[", "("):
            return self.list(at + 1, "]" if mark == "[" else ")", depth)
        if found := _TEXT.match(self.text, at):
            return self.read_strings(found)
        if found := _NUMBER.match(self.text, at):
            return _parse_number(found[0]), found.end()
        name = _NAME.match(self.text, at)
        if name is None or name[0] not in _CONSTANTS:
            raise ValueError(f"no value at character {at}")
        return _CONSTANTS[name[0]], name.end()

    def read_strings(self, found: re.Match[str]) -> tuple[str, int]:
        """Read a string; adjacent ones are joined."""
        made: list[str] = []
        while True:
            inner = next((each for each in found.groups()[1:] if each is not None), "")
            made.append(inner if "r" in found[1].lower() else _ESCAPE.sub(_unescape, inner))
            at = self.skip_spaces(found.end())
            again = _TEXT.match(self.text, at)
            if again is None:
                return "".join(made), found.end()
            found = again

    def key(self, at: int, depth: int) -> tuple[str, int]:
        key, at = self.value(at, depth + 1)
        at = self.skip_spaces(at)
        if isinstance(key, dict | list) or not self.text.startswith(":", at):
            raise ValueError(f"no key at character {at}")
        return str(key), self.skip_spaces(at + 1)


class _UnescapedReader(_Reader):
    """A parser of Python's notation whose strings may contain their own quotation mark.

    A string ends at a quotation mark before another parameter of the function, or before the end of
    the call.
    """

    def __init__(self, text: str, parameters: Mapping[str, Sequence[str]]) -> None:
        super().__init__(text)
        self._parameters = parameters

    def argument(self, function: str, at: int) -> tuple[object, int]:
        quote = self.text[at : at + 1]
        if quote not in ("'", '"'):
            return super().argument(function, at)
        keys = "|".join(map(re.escape, self._parameters.get(function, ()))) or _NAME.pattern
        call_end = rf"\)\s*+(?:[\],;]\s*+)*+(?:{_NAME.pattern}\(|\Z)"
        closing = compile_possessive(rf"{quote}(?=\s*+(?:,\s*+(?:{keys})\s*+=|{call_end}))")
        found = closing.search(self.text, at + 1)
        if found is None:
            raise ValueError(f"no closing quotation mark at character {at}")
        return _ESCAPE.sub(_unescape, self.text[at + 1 : found.start()]), found.end()


def _parse_number(text: str) -> int | float | None:
    """Return a number, or None if it does not fit a double, which JSON cannot express."""
    try:
        return int(text, 0 if "x" in text.lower() else 10)
    except ValueError:
        value = float(text)
        return value if abs(value) < float("inf") else None


def _unescape(found: re.Match[str]) -> str:
    coded = next((each for each in found.groups()[:3] if each), None)
    if coded or found[4]:
        code = int(coded, 16) if coded else int(found[4], 8)
        return chr(code) if code <= _MAX_CHAR and not 0xD800 <= code < 0xE000 else "\ufffd"
    return _ESCAPED.get(found[5], found[0])
