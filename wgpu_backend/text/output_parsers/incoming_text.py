"""Text that arrives in pieces, and the steps of parsers that read it.

Readers are generators: they yield when they need more text. A grammar is therefore written as if
all of the text were there, and its result does not depend on the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from wgpu_backend.text.output_parsers.patterns import compile_possessive

T = TypeVar("T")
Wanted = str | Callable[[str], bool]
"""What a reader waits for: a character, "" for any, or a test of the next piece."""
Reader = Generator[Wanted, None, T]
"""A reader of text. It yields what it waits for; pieces without it are only collected."""

END = ""
"""A stand-in for a tag: the end of the answer."""
_SPACES = re.compile(r"\s*")
_FLAT = {
    # Text between brackets without nesting, strings included if their end has arrived.
    "json": compile_possessive(r'(?:[\s\w,:.+\-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL),
    "python": re.compile(r"[\s\w,:=.+\-]*+"),
}
_QUOTES = {"json": '"', "python": "'\""}
_UNQUOTED = {q: compile_possessive(rf"[^{q}\\]*+(?:\\.[^{q}\\]*+)*+", re.DOTALL) for q in "'\""}
_OPENING, _CLOSING = "{[(", "}])"
# Nesting of a value: decoders recurse.
_MAX_DEPTH = 200


@lru_cache(maxsize=256)
def arrival(*tags: str) -> Callable[[str], bool]:
    """Return a predicate: whether a new piece of text may complete one of these tags."""
    # A tag that began in an earlier piece ends with a suffix of it at the beginning of this one.
    suffixes = tuple(tag[at:] for tag in tags for at in range(1, len(tag)))
    if len(tags) == 1:
        [tag], last = tags, tags[0][-1]
        return lambda piece: last in piece and (tag in piece or piece.startswith(suffixes))
    if len(tags) == 2:
        one, other = tags
        return lambda piece: one in piece or other in piece or piece.startswith(suffixes)
    return lambda piece: piece.startswith(suffixes) or any(tag in piece for tag in tags)


def _ends_string(piece: str) -> bool:
    """Return whether a piece may contain the quotation mark that ends a string of JSON."""
    # After a backslash at the end of an earlier piece, or two of them, a mark may count.
    return '"' in piece and (
        piece.count('"') != piece.count('\\"') or "\\\\" in piece or piece[0] == "\\"
    )


class FormatMismatch(ValueError):
    """An answer that does not follow the grammar."""


class IncomingText:
    """Text that arrives in pieces.

    Attributes
    ----------
    text, at : str, int
        The text that has arrived, and the position up to which it was read.
    ended : bool
        Whether the text is complete; readers do not yield then.
    fell_short : bool
        Whether a reader looked for more text after the end since this was last unset. It says
        whether an error is due to the end, which does not depend on when the text arrived.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.fell_short = False
        self._mark = 0
        self._kept: list[str] | None = None

    def add(self, piece: str) -> None:
        """Append the next piece; text that was read is kept only since a mark."""
        if self._kept is not None:
            self._kept.append(self.text[self._mark : self.at])
        self.text, self.at, self._mark = self.text[self.at :] + piece, 0, 0

    def mark(self) -> None:
        """Keep the text that is read from here on, for `end_mark` or `rewind`."""
        self._kept, self._mark = [], self.at

    def drop_mark(self) -> None:
        """Remove the mark."""
        self._kept = None

    def end_mark(self) -> str:
        """Return the text read since the mark, and remove the mark."""
        kept, self._kept = self._kept or [], None
        return "".join([*kept, self.text[self._mark : self.at]])

    def rewind(self) -> None:
        """Go back to the mark, and remove it."""
        kept, self._kept = self._kept, None
        if kept:
            self.text, self._mark = "".join([*kept, self.text[self._mark :]]), 0
        self.at = self._mark

    def skip(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Skip a pattern's match in the text that has arrived, without waiting."""
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def wait(self, wanted: Wanted = "") -> Reader[None]:
        """Wait for more text.

        Raises
        ------
        FormatMismatch
            The text has ended.
        """
        if self.is_over():
            raise FormatMismatch("the answer ends early")
        yield wanted

    def is_over(self) -> bool:
        """Return whether more text, which a reader needs now, cannot arrive."""
        self.fell_short = self.fell_short or self.ended
        return self.ended

    def fill(self, count: int) -> Reader[None]:
        """Wait for a piece if fewer than `count` characters have arrived."""
        if len(self.text) - self.at < count and not self.ended:
            yield ""

    def peek(self) -> Reader[str]:
        """Return the next character, or "" at the end of the answer."""
        while self.at == len(self.text) and not self.is_over():
            yield ""
        return self.text[self.at : self.at + 1]

    def skip_spaces(self, spaces: re.Pattern[str] = _SPACES) -> Reader[str]:
        """Skip spaces, and return the character after them."""
        while True:
            found = spaces.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text) or self.is_over():
                return self.text[self.at : self.at + 1]
            yield ""

    def peek_tag(self, *tags: str) -> Reader[str | None]:
        """Return the tag that comes next, preferring longer ones, or None."""
        while True:
            text, at, found, begun = self.text, self.at, "", False
            rest = len(text) - at
            for tag in tags:
                if text.startswith(tag, at):
                    found = tag if len(tag) > len(found) else found
                elif len(tag) > rest and tag.startswith(text[at:]):
                    begun = True
            if not begun or self.is_over():
                return found or None
            yield ""

    def take(self, *tags: str) -> Reader[str | None]:
        """Skip the next tag if it is one of these, and return it."""
        found = yield from self.peek_tag(*tags)
        self.at += len(found or "")
        return found

    def expect(self, tag: str) -> Reader[None]:
        """Skip this tag.

        Raises
        ------
        FormatMismatch
            Something else comes.
        """
        if (yield from self.take(tag)) is None:
            raise FormatMismatch(f"no {tag}")

    def read_until(self, tag: str) -> Reader[str]:
        """Return the text before a tag, and skip the tag.

        Raises
        ------
        FormatMismatch
            The tag does not come.
        """
        taken: list[str] = []
        while True:
            found = self.text.find(tag, self.at)
            end = found if found >= 0 else max(self.at, len(self.text) - len(tag) + 1)
            taken.append(self.text[self.at : end])
            self.at = end + len(tag) if found >= 0 else end
            if found >= 0:
                return "".join(taken)
            yield from self.wait(arrival(tag))

    def read_while(self, characters: re.Pattern[str]) -> Reader[str]:
        """Return text as long as it consists of these characters."""
        taken: list[str] = []
        while True:
            found = characters.match(self.text, self.at)
            assert found is not None
            taken.append(found[0])
            self.at = found.end()
            if self.at < len(self.text) or self.is_over():
                return "".join(taken)
            yield ""

    def read_brackets(self, notation: str = "json") -> Reader[str]:
        """Return the text of a value in brackets; brackets in quotation marks do not count.

        Parameters
        ----------
        notation : str
            ``json`` or ``python``.

        Raises
        ------
        FormatMismatch
            It is not such a value, is nested too deep, or does not end.
        """
        flat, taken, depth = _FLAT[notation], list[str](), 0
        while True:
            found = flat.match(self.text, self.at)
            assert found is not None
            taken.append(found[0])
            self.at = found.end()
            mark = self.text[self.at : self.at + 1]
            if not mark:
                yield from self.wait()
            elif mark in _QUOTES[notation]:
                taken.append((yield from self._read_quoted(mark, notation)))
            else:
                depth += _depth_change(mark, depth)
                taken.append(mark)
                self.at += 1
                if not depth:
                    return "".join(taken)

    def _read_quoted(self, quote: str, notation: str) -> Reader[str]:
        """Return a string with its quotation marks."""
        if notation == "python":
            empty = yield from self.take(quote * 2, quote * 3)
            if empty == quote * 2:
                return quote * 2
            opening = empty or (yield from self.take(quote)) or quote
        else:
            opening = quote
            self.at += 1
        taken = [opening]
        wanted = _ends_string if notation == "json" else quote
        while True:
            found = _UNQUOTED[quote].match(self.text, self.at)
            assert found is not None
            taken.append(found[0])
            self.at = found.end()
            if self.text[self.at : self.at + 1] != quote:
                yield from self.wait(wanted if self.at == len(self.text) else "")
                continue
            if (yield from self.take(opening)) is not None:
                return "".join([*taken, opening])
            # A quotation mark inside a triple-quoted string.
            taken.append(quote)
            self.at += 1

    def is_followed_by(self, at: int, orders: Sequence[Sequence[str]]) -> bool | None:
        """Return whether one of these sequences of tags follows; None if one may still arrive."""
        known = [self._matches_order(at, order) for order in orders]
        return True if True in known else None if None in known else False

    def _matches_order(self, at: int, order: Sequence[str]) -> bool | None:
        for tag in order:
            spaces = _SPACES.match(self.text, at)
            assert spaces is not None
            at = spaces.end()
            rest = len(self.text) - at
            if tag == END:
                return False if rest else True if self.is_over() else None
            if not self.text.startswith(tag, at):
                begun = rest < len(tag) and tag.startswith(self.text[at:])
                return None if begun and not self.is_over() else False
            at += len(tag)
        return True


def _depth_change(mark: str, depth: int) -> int:
    """Return the change of depth at a bracket."""
    step = (mark in _OPENING) - (mark in _CLOSING)
    if not step or not 0 <= depth + step <= _MAX_DEPTH:
        raise FormatMismatch(f"{mark} in a value, {depth} brackets deep")
    return step


def find_first(text: str, markers: Iterable[str], start: int = 0) -> tuple[int, str] | None:
    """Return the place and text of the first marker, the longer one of two at one place."""
    found = [(at, marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    return min(found, key=lambda pair: (pair[0], -len(pair[1])), default=None)


def count_safe(text: str, markers: Sequence[str]) -> int:
    """Count the characters of `text` before a possible beginning of a marker."""
    longest = max(map(len, markers), default=0)
    firsts = {marker[0] for marker in markers}
    for at in range(max(0, len(text) - longest + 1), len(text)):
        if text[at] not in firsts:
            continue
        rest = text[at:]
        if any(marker.startswith(rest) for marker in markers):
            return at
    return len(text)
