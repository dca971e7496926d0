"""Text that arrives in pieces, read by a format's grammar.

Readers are generators: where they need more text they yield, so a grammar is written as if all of
the text were there, and what it finds does not depend on the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[str, None, T]
"""What reads text. It yields a character that has to come before it can go on, or "" for any."""

END = ""
"""In place of a tag: the end of the answer."""
_SPACES = re.compile(r"\s*")
_FLAT = {
    # What a notation has between brackets, with texts whose end is there.
    "json": re.compile(r'(?:[\s\w,:.+\-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL),
    "python": re.compile(r"[\s\w,:=.+\-]*+"),
}
_QUOTES = {"json": '"', "python": "'\""}
_UNQUOTED = {q: re.compile(rf"[^{q}\\]*+(?:\\.[^{q}\\]*+)*+", re.DOTALL) for q in "'\""}
_OPENING, _CLOSING = "{[(", "}])"
_MAX_DEPTH = 200  # of a value; decoders recurse


class Broken(ValueError):
    """What was read is not what the grammar asks for."""


class Arriving:
    """Text that arrives in pieces.

    Attributes
    ----------
    text, at : str, int
        What is there, and how far it was read.
    ended : bool
        Whether no more comes; readers do not yield then.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._mark = 0
        self._kept: list[str] | None = None

    def add(self, piece: str) -> None:
        """Take the next piece; what was read is kept only since a mark."""
        if self._kept is not None:
            self._kept.append(self.text[self._mark : self.at])
        self.text, self.at, self._mark = self.text[self.at :] + piece, 0, 0

    def mark(self) -> None:
        """Keep what is read from here on, for `since`."""
        self._kept, self._mark = [], self.at

    def since(self) -> str:
        """What was read since the mark, which is taken away."""
        kept, self._kept = self._kept or [], None
        return "".join([*kept, self.text[self._mark : self.at]])

    def back(self) -> None:
        """Go back to the mark, which is taken away."""
        kept, self._kept = self._kept, None
        if kept:
            self.text, self._mark = "".join([*kept, self.text[self._mark :]]), 0
        self.at = self._mark

    def passed(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Pass what a pattern matches in the text that is there; this waits for nothing."""
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def more(self, wanted: str = "") -> Reading[None]:
        """Wait for more text.

        Raises
        ------
        Broken
            None comes.
        """
        if self.ended:
            raise Broken("the answer ends early")
        yield wanted

    def peek(self) -> Reading[str]:
        """The next character; none at the end of the answer."""
        while self.at == len(self.text) and not self.ended:
            yield ""
        return self.text[self.at : self.at + 1]

    def spaces(self, spaces: re.Pattern[str] = _SPACES) -> Reading[str]:
        """Pass spaces, and give the character that follows them."""
        while True:
            found = spaces.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            yield ""

    def starts(self, *tags: str) -> Reading[str | None]:
        """Which of the tags comes next, the longest first; None for none of them."""
        while True:
            text, at, found, begun = self.text, self.at, "", False
            rest = len(text) - at
            for tag in tags:
                if text.startswith(tag, at):
                    found = tag if len(tag) > len(found) else found
                elif len(tag) > rest and tag.startswith(text[at:]):
                    begun = True
            if self.ended or not begun:
                return found or None
            yield ""

    def took(self, *tags: str) -> Reading[str | None]:
        """Pass the tag that comes next, where it is one of these."""
        found = yield from self.starts(*tags)
        self.at += len(found or "")
        return found

    def expect(self, tag: str) -> Reading[None]:
        """Pass this tag.

        Raises
        ------
        Broken
            Something else comes.
        """
        if (yield from self.took(tag)) is None:
            raise Broken(f"no {tag}")

    def until(self, tag: str) -> Reading[str]:
        """Text before a tag, which is passed.

        Raises
        ------
        Broken
            It does not come.
        """
        taken: list[str] = []
        while True:
            found = self.text.find(tag, self.at)
            end = found if found >= 0 else max(self.at, len(self.text) - len(tag) + 1)
            taken.append(self.text[self.at : end])
            self.at = end + len(tag) if found >= 0 else end
            if found >= 0:
                return "".join(taken)
            yield from self.more(tag[-1])

    def run(self, characters: re.Pattern[str]) -> Reading[str]:
        """Text of these characters, as far as it goes."""
        taken: list[str] = []
        while True:
            found = characters.match(self.text, self.at)
            assert found is not None
            taken.append(found[0])
            self.at = found.end()
            if self.at < len(self.text) or self.ended:
                return "".join(taken)
            yield ""

    def bracketed(self, notation: str = "json") -> Reading[str]:
        """Text of a value in brackets; ones within quotation marks are not counted.

        Parameters
        ----------
        notation : str
            ``json`` or ``python``.

        Raises
        ------
        Broken
            It is none, nested deeper than any argument, or does not end.
        """
        flat, taken, depth = _FLAT[notation], list[str](), 0
        while True:
            found = flat.match(self.text, self.at)
            assert found is not None
            taken.append(found[0])
            self.at = found.end()
            mark = self.text[self.at : self.at + 1]
            if not mark:
                yield from self.more()
            elif mark in _QUOTES[notation]:
                taken.append((yield from self._quoted(mark, notation)))
            else:
                depth += _step(mark, depth)
                taken.append(mark)
                self.at += 1
                if not depth:
                    return "".join(taken)

    def _quoted(self, quote: str, notation: str) -> Reading[str]:
        """A text with its quotation marks."""
        if notation == "python":
            empty = yield from self.took(quote * 2, quote * 3)
            if empty == quote * 2:
                return quote * 2
            opening = empty or (yield from self.took(quote)) or quote
        else:
            opening = quote
            self.at += 1
        taken = [opening]
        while True:
            found = _UNQUOTED[quote].match(self.text, self.at)
            assert found is not None
            taken.append(found[0])
            self.at = found.end()
            if self.text[self.at : self.at + 1] != quote:
                yield from self.more(quote if self.at == len(self.text) else "")
                continue
            if (yield from self.took(opening)) is not None:
                return "".join([*taken, opening])
            taken.append(quote)  # one that is not the end of three
            self.at += 1

    def follows(self, at: int, orders: Sequence[Sequence[str]]) -> bool | None:
        """Whether one of these orders of tags follows, spaces aside; None where that is to come."""
        known = [self._order(at, order) for order in orders]
        return True if True in known else None if None in known else False

    def _order(self, at: int, order: Sequence[str]) -> bool | None:
        for tag in order:
            spaces = _SPACES.match(self.text, at)
            assert spaces is not None
            at = spaces.end()
            rest = len(self.text) - at
            if tag == END:
                return (not rest if self.ended else None) if not rest else False
            if not self.text.startswith(tag, at):
                begun = rest < len(tag) and tag.startswith(self.text[at:])
                return None if begun and not self.ended else False
            at += len(tag)
        return True


def _step(mark: str, depth: int) -> int:
    """How a bracket changes the depth."""
    step = (mark in _OPENING) - (mark in _CLOSING)
    if not step or not 0 <= depth + step <= _MAX_DEPTH:
        raise Broken(f"{mark} in a value, {depth} brackets deep")
    return step
