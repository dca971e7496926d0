"""The machine behind most formats: text with spans between tags."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wgpu_backend.text.output_parsers.arriving import Arriving, Broken, Reading
from wgpu_backend.text.output_parsers.calls import Offered, Tools, begun_name
from wgpu_backend.text.output_parsers.held import shown
from wgpu_backend.text.output_parsers.parts import Content, Part, Thinking, ToolCall

_NEXT = re.compile(r"\s*(\S)")
_RETRIES = 64  # of spans without an end, each of which reads the rest of the answer again


class Body:
    """What stands in a span with calls, for the reader of it.

    Parameters
    ----------
    text : Arriving
        Behind the opening tag.
    offered : Offered
    give : callable
        Takes a call once it is whole.
    """

    def __init__(self, text: Arriving, offered: Offered, give: Callable[[ToolCall], None]) -> None:
        self.text = text
        self.offered = offered
        self._give = give
        self.given = 0
        self.lenient = False  # tags may be left out: there is no other reading

    def give(self, calls: Iterable[ToolCall]) -> None:
        """Take calls that are whole."""
        for call in calls:
            self._give(call)
            self.given += 1
        self.text.mark()


Read = Callable[[Body], Reading[None]]
"""Reads a span up to its end, closing tag included; Broken or a ValueError where it holds none."""


@dataclass(frozen=True, slots=True)
class Span:
    """What stands between two tags.

    Parameters
    ----------
    opening : str
    closings : tuple of str
        Any of them ends a span that holds no calls; with none, it is the opening tag alone.
    read : callable or None
        Reads calls. None where it is reasoning, which is given as it comes; or ``unwrapped``.
    unwrapped : bool
        The tags go, and what is between them is text for the user.
    inner : tuple of str
        Tags that `read` looks for.
    interrupts : bool
        Whether it ends a reasoning whose closing tag the model leaves out.
    """

    opening: str
    closings: tuple[str, ...] = ()
    read: Read | None = None
    unwrapped: bool = False
    inner: tuple[str, ...] = ()
    interrupts: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of the span."""
        return tuple(filter(None, (self.opening, *self.closings, *self.inner)))


class OutputParser(ABC):
    """Takes an answer apart while it is made.

    The parts are the same however the text is divided among calls of `push`, and never hold
    a piece of a tag. Text that looks like a call and is none is given as it stands, at the latest
    by `finish`: nothing is lost but a call that was cut.
    """

    def __init__(self) -> None:
        self._text = Arriving()
        self._parts: list[Part] = []
        self._waiting: list[str] = []
        self._wanted = ""
        self._cut = False
        self._reading = self._read()

    @property
    @abstractmethod
    def tags(self) -> frozenset[str]:
        """Texts that have to reach the parser, also where they are control tokens."""

    @abstractmethod
    def _read(self) -> Reading[None]:
        """Read the answer, and add to its parts."""

    def push(self, text: str) -> list[Part]:
        """Take the next piece of the answer, and give what is certain by now."""
        self._waiting.append(text)
        return self._go_on() if self._wanted in text else []

    def finish(self, *, cut: bool = False) -> list[Part]:
        """Give what was held back, at the end of the answer.

        Parameters
        ----------
        cut : bool
            Whether the model would have gone on. A call that it had not ended is left out then:
            its text is for nobody, and what it has of arguments may be wrong.
        """
        parts = self._go_on()
        self._text.ended, self._cut = True, cut
        return [*parts, *self._go_on()]

    def _go_on(self) -> list[Part]:
        self._text.add("".join(self._waiting))
        self._waiting.clear()
        self._wanted = next(self._reading, "")
        parts, self._parts = self._parts, []
        return parts


class Trimmed:
    """Text without white space at its ends, as it comes: spaces wait for what follows them."""

    def __init__(self, kind: type[Content] | type[Thinking], *, begun: bool = False) -> None:
        self._kind = kind
        self._begun = begun
        self._spaces = ""

    def push(self, text: str) -> list[Part]:
        """Give a piece of text, as far as its last character that is no space."""
        text = self._spaces + text
        if not self._begun:
            text = text.lstrip()
        ready = text.rstrip()
        self._spaces = text[len(ready) :]
        self._begun = self._begun or bool(ready)
        return [self._kind(ready)] if ready else []

    def rest(self) -> list[Part]:
        """Give the spaces at the end."""
        text, self._spaces = self._spaces, ""
        return [self._kind(text)] if text else []


class Tags:
    """Tags of which the first in a text is looked for."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = sorted(set(filter(None, tags)), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._tags)) or r"(?!)")

    def begin(self, text: str, at: int) -> bool:
        """Whether one of them comes next."""
        return self._pattern.match(text, at) is not None

    def next(self, text: Arriving) -> tuple[int, str]:
        """End of what is surely before any tag, and the tag that comes there if one does.

        Of two at one place it is the longer; that may have to wait for the next piece.
        """
        found = self._pattern.search(text.text, text.at)
        size = len(text.text)
        tail = max(text.at, size - len(self._tags[0]) + 1) if self._tags else size
        if text.ended or (found is not None and found.start() < tail):
            return (found.start(), found[0]) if found else (size, "")
        begun = tail + shown(text.text[tail:], self._tags)
        if found is None or begun < found.start():
            return begun, ""
        rest = text.text[found.start() :]
        if any(len(tag) > len(rest) and tag.startswith(rest) for tag in self._tags):
            return found.start(), ""
        return found.start(), found[0]


class SpanParser(OutputParser):
    """Parser of text with spans.

    Parameters
    ----------
    spans : sequence of Span
    tools : sequence of mappings
        Functions that may be called.
    prompt : str
        What the model continues; where it ends within a span of reasoning, the answer begins there.
    first : callable or None
        Reads calls that stand at the beginning of the answer without a tag.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        tools: Tools = (),
        prompt: str = "",
        first: Callable[[Body], Reading[bool]] | None = None,
    ) -> None:
        super().__init__()
        self._spans: dict[str, Span] = {}
        for span in spans:
            self._spans.setdefault(span.opening, span)
        self._offered = Offered(tools)
        self._openings = Tags(self._spans)
        self._interrupting = tuple(s.opening for s in self._spans.values() if s.interrupts)
        self._closings: dict[str, Tags] = {}
        self._content = Trimmed(Content, begun=True)
        self._retries = 0
        self._first = first if tools else None
        end = prompt.rstrip()
        self._begun = max(
            (s for s in self._spans.values() if _in(s, end)),
            key=lambda span: len(span.opening),
            default=None,
        )

    @property
    def tags(self) -> frozenset[str]:
        """Texts that have to reach the parser, also where they are control tokens."""
        return frozenset(tag for span in self._spans.values() for tag in span.tags)

    def _read(self) -> Reading[None]:
        begun = self._begun
        if begun is not None:
            yield from self._in_calls("", begun.read) if begun.read else self._streamed(begun)
        fresh = True
        while True:
            if self._first is not None and fresh and self._may_begin():
                fresh = yield from self._called(self._first)
                continue
            opening = yield from self._outside()
            if not opening:
                return
            span = self._spans[opening]
            if span.read is None:
                fresh = yield from self._streamed(span)
            else:
                fresh = yield from self._in_calls(opening, span.read)

    def _may_begin(self) -> bool:
        """Whether calls without a tag may come next, by their first character."""
        text = self._text.text
        found = _NEXT.match(text, self._text.at)
        if found is None:
            return True
        return found[1] in "{[`" and not self._openings.begin(text, found.start(1))

    def _outside(self) -> Reading[str]:
        """Give text up to a tag, and which it is; none at the end of the answer."""
        while True:
            end, tag = self._openings.next(self._text)
            if end > self._text.at:
                self._give(self._content, end)
            self._text.at += len(tag)
            if tag:
                return tag
            if self._text.ended:
                self._parts += self._content.rest()
                return ""
            yield ""

    def _give(self, into: Trimmed, end: int) -> None:
        self._parts += into.push(self._text.text[self._text.at : end])
        self._text.at = end

    def _streamed(self, span: Span) -> Reading[bool]:
        """Give what has no calls as it comes; whether what follows begins anew."""
        if not span.closings:
            return False
        into = self._content if span.unwrapped else Trimmed(Thinking)
        tags = self._closings.get(span.opening)
        if tags is None:
            others = () if span.unwrapped else self._interrupting
            tags = self._closings.setdefault(span.opening, Tags((*span.closings, *others)))
        while True:
            end, tag = tags.next(self._text)
            self._give(into, end)
            if tag:
                break
            if self._text.ended:
                return False
            yield ""
        if tag in span.closings:
            self._text.at += len(tag)
        if not span.unwrapped:
            self._content = Trimmed(Content)
        return not span.unwrapped

    def _taken(self, call: ToolCall) -> None:
        self._parts.append(call)
        self._content = Trimmed(Content)

    def _called(self, first: Callable[[Body], Reading[bool]]) -> Reading[bool]:
        """Read calls without a tag; whether there were any."""
        body, text = Body(self._text, self._offered, self._taken), self._text
        text.mark()
        try:
            found = yield from first(body)
        except (ValueError, RecursionError):
            found = False
        if found or body.given:
            text.since()
            return True
        text.back()
        if text.ended and self._cut and begun_name(text.text, text.at) in self._offered:
            text.at = len(text.text)
        return False

    def _in_calls(self, opening: str, read: Read) -> Reading[bool]:
        """Read a span with calls; whether what follows begins anew."""
        body, text = Body(self._text, self._offered, self._taken), self._text
        text.mark()
        try:
            yield from read(body)
        except (ValueError, RecursionError) as error:
            if not (isinstance(error, Broken) and text.ended):
                rest = text.since()
                self._parts += self._content.push(rest if body.given else opening + rest)
                return False
        else:
            text.since()
            return True
        text.back()
        if not self._cut:
            self._read_again("" if body.given else opening, read)
        else:
            text.at = len(text.text)
        return False

    def _read_again(self, opening: str, read: Read) -> None:
        """Read what has no end as far as it makes sense, or take its opening tag for text."""
        body, text = Body(self._text, self._offered, self._taken), self._text
        body.lenient = True
        text.mark()
        try:
            for _ in read(body):  # all of the text is there
                raise AssertionError
            text.since()
        except (ValueError, RecursionError):
            text.back()
            self._parts += self._content.push("" if body.given else opening)
            self._retries += 1
            if self._retries > _RETRIES:
                self._give(self._content, len(text.text))


def _in(span: Span, end: str) -> bool:
    """Whether a prompt's end opens the span."""
    return bool(span.closings or span.read) and end.endswith(span.opening.rstrip())
