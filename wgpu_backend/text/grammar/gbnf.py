"""A parser of GBNF, llama.cpp's grammar notation.

`compile_alone.py` runs this in a process that must not import the package, so it imports none of
it. The meaning is llama.cpp's: an escape names a code point, ``.`` is any code point, ``[a&&b]``
has three members, a repetition applies to the item before it even if that is a repetition, and the
last definition of a rule counts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LAST = 0x10FFFF
# Halves of surrogate pairs, which no text contains.
_HALVES = (0xD800, 0xDFFF)
MOST_DEPTH = 100
MOST_TIMES = 100_000

Ranges = tuple[tuple[int, int], ...]


class GbnfError(ValueError):
    """An error in a grammar, with its line and column."""


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """A code point in sorted, disjoint ranges; an empty tuple matches none."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A token of the vocabulary, or any other than that one."""

    id: int
    but: bool


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """Items in sequence."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    """A choice of items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """A repetition of an item, without an upper limit if `most` is None."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """A reference to a rule."""

    name: str
    at: int = field(default=0)


Node = Chars | Token | Seq | Alt | Repeat | Ref
EMPTY = Seq(())
ANY: Ranges = ((0, _HALVES[0] - 1), (_HALVES[1] + 1, LAST))


def parse_gbnf(text: str, named: Mapping[str, int], count: int) -> dict[str, Node]:
    """Parse a grammar into rules by name; ``root`` exists and every reference is defined.

    Parameters
    ----------
    text : str
        The grammar in GBNF.
    named : mapping
        Ids of the tokens that it names by text, such as ``<think>``.
    count : int
        Number of the model's tokens.

    Raises
    ------
    GbnfError
        The grammar is invalid or has left recursion.
    """
    reader = _Reader(text, named, count)
    rules = reader.rules()
    for ref in reader.refs:
        if ref.name not in rules:
            raise reader.make_error(f"rule {ref.name} is not defined", ref.at)
    if "root" not in rules:
        raise GbnfError("there is no rule named root, which is the start")
    _require_no_left_recursion(rules, reader)
    return rules


# Literals, classes and comments come first in the pattern, as a < inside of one begins no name.
_NAMES = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\r\n]*|(<(?!\[)[^>\x00]*>)', re.DOTALL
)


def token_names(text: str) -> set[str]:
    """Return the texts of tokens that a grammar names, with their brackets."""
    return {found[1] for found in _NAMES.finditer(text) if found[1]}


def invert_ranges(ranges: Ranges) -> Ranges:
    """Return the ranges of all code points outside of these ranges."""
    out: list[tuple[int, int]] = []
    begin = 0
    # An empty range past the end closes the last gap.
    for low, high in [*ranges, (LAST + 1, LAST + 1)]:
        if low > begin:
            out.append((begin, low - 1))
        begin = high + 1
    return _normalize(out)


def _normalize(ranges: list[tuple[int, int]]) -> Ranges:
    """Sort and merge ranges, and remove halves of surrogate pairs."""
    low, high = _HALVES
    cut = [
        part
        for a, b in ranges
        for part in ((a, min(b, low - 1)), (max(a, high + 1), min(b, LAST)))
        if part[0] <= part[1]
    ]
    out: list[tuple[int, int]] = []
    for a, b in sorted(cut):
        if out and a <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return tuple(out)


_PLAIN = {"t": "\t", "r": "\r", "n": "\n", **{c: c for c in '\\"[]-'}}
_DIGITS = {"x": 2, "u": 4, "U": 8}
_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_INT = re.compile(r"[0-9]+")
_END = re.compile(r"\r\n?|\n|\Z")


class _Reader:
    """A recursive-descent parser that reports line and column of an error."""

    def __init__(self, text: str, named: Mapping[str, int], count: int) -> None:
        self.refs: list[Ref] = []
        self.places: dict[str, int] = {}
        self._text, self._named, self._tokens = text, named, count
        self._at = self._depth = 0
        self._lines = [0, *(found.end() for found in re.finditer(r"\r\n?|\n", text))]
        self._items: Mapping[str, Callable[[], Node]] = {
            '"': self._literal,
            "[": self._class,
            "<": self._token,
            "!": self._token,
            "(": self._group,
            ".": self._any,
        }

    def make_error(self, why: str, at: int | None = None) -> GbnfError:
        """Create an error for a place, by default the current one."""
        place = self._at if at is None else at
        line = bisect_left(self._lines, place + 1)
        return GbnfError(f"line {line}, column {place - self._lines[line - 1] + 1}: {why}")

    def rules(self) -> dict[str, Node]:
        """Parse all rules."""
        found: dict[str, Node] = {}
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            place = self._at
            name = self._match(_NAME, "the name of a rule")
            self._skip(_BLANK)
            self._expect("::=")
            self._skip(_BLANK_LINES)
            self.places[name] = place
            found[name] = self._alternatives(_BLANK)
            # A rule ends with its line; only inside parentheses may it go on.
            self._match(_END, "an item, | or the end of the line")
            self._skip(_BLANK_LINES)
        return found

    def _char(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, blank: re.Pattern[str]) -> None:
        found = blank.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self.make_error(f"{self._describe_char()}, needs {what}")
        self._at = found.end()
        return found[0]

    def _expect(self, mark: str) -> None:
        if not self._text.startswith(mark, self._at):
            raise self.make_error(f"{self._describe_char()}, needs {mark}")
        self._at += len(mark)

    def _describe_char(self) -> str:
        return repr(self._char()) if self._char() else "the grammar ends here"

    def _alternatives(self, blank: re.Pattern[str]) -> Node:
        found = [self._sequence(blank)]
        while self._char() == "|":
            self._at += 1
            self._skip(_BLANK_LINES)
            found.append(self._sequence(blank))
        return found[0] if len(found) == 1 else Alt(tuple(found))

    def _sequence(self, blank: re.Pattern[str]) -> Node:
        items: list[Node] = []
        while char := self._char():
            if char in "*+?{":
                times = self._times(blank)
                if not items or items[-1] is EMPTY:
                    raise self.make_error("there is nothing to repeat")
                items[-1] = _repeat(items[-1], *times)
            elif char in self._items:
                items.append(self._items[char]())
            elif _NAME.match(char):
                at = self._at
                self.refs.append(Ref(self._match(_NAME, "a name"), at))
                items.append(self.refs[-1])
            else:
                break
            self._skip(blank)
        return Seq(tuple(item for item in items if item is not EMPTY))

    def _times(self, blank: re.Pattern[str]) -> tuple[int, int | None]:
        char = self._char()
        self._at += 1
        if char != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        self._skip(blank)
        least = self._count()
        most: int | None = least
        self._skip(blank)
        if self._char() == ",":
            self._at += 1
            self._skip(blank)
            most = self._count() if _INT.match(self._char()) else None
            self._skip(blank)
        if most is not None and most < least:
            raise self.make_error(f"at least {least} and at most {most} times is impossible")
        self._expect("}")
        return least, most

    def _count(self) -> int:
        # `int` refuses texts of more than 4,300 digits.
        digits = self._match(_INT, "a number of times").lstrip("0") or "0"
        if len(digits) > 6 or int(digits) > MOST_TIMES:
            raise self.make_error(f"{digits[:20]} times, needs at most {MOST_TIMES}")
        return int(digits)

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self.make_error(f"nested too deep, needs at most {MOST_DEPTH} levels of groups")
        self._at += 1
        self._skip(_BLANK_LINES)
        inner = self._alternatives(_BLANK_LINES)
        self._expect(")")
        self._depth -= 1
        # Wrapped so that it is never EMPTY: llama.cpp repeats any group, even an empty one.
        return Alt((inner,))

    def _any(self) -> Node:
        self._at += 1
        return Chars(ANY)

    def _literal(self) -> Node:
        self._at += 1
        items: list[Node] = []
        while self._char() != '"':
            place = self._at
            code = self._code("the closing quote")
            if _HALVES[0] <= code <= _HALVES[1]:
                why = "half of a surrogate pair; write the whole as \\U and eight digits"
                raise self.make_error(f"U+{code:04X} is {why}", place)
            if code > LAST:
                raise self.make_error(f"U+{code:X} is beyond U+10FFFF", place)
            items.append(Chars(((code, code),)))
        self._at += 1
        return Seq(tuple(items)) if items else EMPTY

    def _class(self) -> Node:
        self._at += 1
        if but := self._char() == "^":
            self._at += 1
        members: list[tuple[int, int]] = []
        while self._char() != "]":
            low = high = self._code("the closing ]")
            # A hyphen before the closing bracket is a member.
            if self._char() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._code("the end of the range")
            members.append((low, high))
        self._at += 1
        # In llama.cpp, neither [] nor [^] consumes a character.
        if not members:
            return EMPTY
        ranges = _normalize(members)
        return Chars(invert_ranges(ranges) if but else ranges)

    def _code(self, what: str) -> int:
        """Return the code point of a character or of an escape sequence."""
        char = self._char()
        if not char or char == "\0":
            raise self.make_error(f"{self._describe_char()}, needs {what}")
        self._at += 1
        if char != "\\":
            return ord(char)
        escaped = self._char()
        self._at += 1
        if escaped in _PLAIN:
            return ord(_PLAIN[escaped])
        count = _DIGITS.get(escaped, 0)
        digits = self._text[self._at : self._at + count]
        if not count:
            known = '\\n \\r \\t \\\\ \\" \\[ \\] \\- \\xXX \\uXXXX \\UXXXXXXXX'
            raise self.make_error(
                f"escape \\{escaped} is unknown, needs one of {known}", self._at - 2
            )
        if not re.fullmatch(rf"[0-9a-fA-F]{{{count}}}", digits):
            raise self.make_error(f"\\{escaped} needs {count} hexadecimal digits", self._at - 2)
        self._at += count
        return int(digits, 16)

    def _token(self) -> Node:
        place = self._at
        if but := self._char() == "!":
            self._at += 1
        if self._text.startswith("<[", self._at):
            self._at += 2
            digits = self._match(_INT, "the id of a token")
            self._expect("]>")
            if len(digits) > 9 or int(digits) >= self._tokens:
                raise self.make_error(f"token {digits[:20]}, the model has {self._tokens}", place)
            return Token(int(digits), but)
        begin = self._at
        self._expect("<")
        end = self._text.find(">", begin)
        name = self._text[begin : end + 1]
        if end < 0:
            raise self.make_error("the > that ends the text of a token is missing", begin)
        if name not in self._named:
            why = "no single token of the model; write text in quotes, or <[id]>"
            raise self.make_error(f"{name[:40]} is {why}", place)
        self._at = end + 1
        return Token(self._named[name], but)


def _repeat(item: Node, least: int, most: int | None) -> Node:
    return EMPTY if most == 0 else Repeat(item, least, most)


def _require_no_left_recursion(rules: Mapping[str, Node], reader: _Reader) -> None:
    """Reject left recursion as llama.cpp does: only a literally empty alternative is nullable."""
    empty = {name for name, body in rules.items() if _has_empty(body)}
    first = {name: [*_leftmost(body, empty)] for name, body in rules.items()}
    done: set[str] = set()
    for root in rules:
        # Depth-first without recursion: a grammar may have thousands of rules in a chain.
        path, under = [root], {root}
        waiting = [iter(first[root])]
        while waiting and root not in done:
            name = next(waiting[-1], None)
            if name is None:
                waiting.pop()
                done.add(path[-1])
                under.discard(path.pop())
            elif name in under:
                way = " → ".join([*path[path.index(name) :], name][:8])
                raise reader.make_error(
                    f"rule {name} begins with itself ({way}); write a repetition, or put something "
                    "before it",
                    reader.places[name],
                )
            elif name not in done:
                path.append(name)
                under.add(name)
                waiting.append(iter(first[name]))


def _has_empty(body: Node) -> bool:
    if isinstance(body, Alt):
        return any(map(_has_empty, body.items))
    return isinstance(body, Seq) and not body.items


def _may_be_empty(item: Node, empty: set[str]) -> bool:
    if isinstance(item, Repeat):
        return item.least == 0 or _may_be_empty(item.item, empty)
    # Only one level of references, as llama.cpp looks no further.
    return item.name in empty if isinstance(item, Ref) else _has_empty(item)


def _leftmost(node: Node, empty: set[str]) -> list[str]:
    """Return the rules that may come first in a text of a node."""
    if isinstance(node, Ref):
        return [node.name]
    if isinstance(node, Repeat):
        return _leftmost(node.item, empty)
    if isinstance(node, Alt):
        return [name for item in node.items for name in _leftmost(item, empty)]
    found: list[str] = []
    for item in node.items if isinstance(node, Seq) else ():
        found += _leftmost(item, empty)
        if not _may_be_empty(item, empty):
            break
    return found
