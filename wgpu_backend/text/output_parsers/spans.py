"""A parser for most formats: text with spans between tags."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wgpu_backend.text.output_parsers.calls import OfferedTools, Tools, read_partial_name
from wgpu_backend.text.output_parsers.incoming_text import (
    FormatMismatch,
    IncomingText,
    Reader,
    Wanted,
    count_safe,
)
from wgpu_backend.text.output_parsers.parts import Content, Part, Thinking, ToolCall

_NEXT = re.compile(r"\s*(\S)")
# Spans without an end, each of which reads the rest of the answer again: bounds quadratic time.
_RETRIES = 64
# Characters of a call that is matched as a whole: bounds the search at each tag that begins none.
_NEAR = 65_536


class Body:
    """The content of a span with calls, for its reader.

    Parameters
    ----------
    text : IncomingText
        The text after the opening tag.
    offered : OfferedTools
        Functions that may be called.
    give : callable
        Takes a call once it is complete.
    """

    def __init__(
        self, text: IncomingText, offered: OfferedTools, give: Callable[[ToolCall], None]
    ) -> None:
        self.text = text
        self.offered = offered
        self._give = give
        self.given = 0
        # Whether tags may be missing, for the last attempt at the end of the answer.
        self.lenient = False

    def give(self, calls: Iterable[ToolCall]) -> None:
        """Emit complete calls."""
        for call in calls:
            self._give(call)
            self.given += 1
        self.text.mark()


Matched = tuple[Sequence[ToolCall], int] | None
"""The calls of a span and the place after it; None if it has to be read in steps."""


def _match_nothing(text: str, at: int, offered: OfferedTools) -> Matched:
    """Match no span."""
    del text, at, offered


@dataclass(frozen=True, slots=True)
class SpanReader:
    """A reader of a span with calls.

    Parameters
    ----------
    read : callable
        Reads the span up to its end, closing tag included, as its text arrives. It raises
        FormatMismatch or a ValueError if the span has no calls.
    match : callable
        Returns what `read` would find, at once, for a span in the usual notation of which all has
        arrived. It takes the text, the place after the opening tag and the functions.
    end : str
        Text without which `match` finds nothing.
    """

    read: Callable[[Body], Reader[None]]
    match: Callable[[str, int, OfferedTools], Matched] = _match_nothing
    end: str = "}"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of an answer between two tags.

    Parameters
    ----------
    opening : str
        Tag that begins it.
    closings : tuple of str
        Any of them ends a span without calls; if empty, the span is the opening tag alone.
    read : SpanReader or None
        Reader of calls. None for reasoning, which is emitted as it comes, and for ``unwrapped``.
    unwrapped : bool
        Whether only the tags are removed, and the text between them is for the user.
    inner : tuple of str
        Tags that `read` looks for.
    interrupts : bool
        Whether it ends reasoning whose closing tag the model omits, also if text follows it.
    strays : tuple of str
        Tags that models repeat after a call, or write before its result; they are dropped there.
    """

    opening: str
    closings: tuple[str, ...] = ()
    read: SpanReader | None = None
    unwrapped: bool = False
    inner: tuple[str, ...] = ()
    interrupts: bool = False
    strays: tuple[str, ...] = ()

    @property
    def tags(self) -> tuple[str, ...]:
        """Return all tags of the span."""
        tags = (self.opening, *self.closings, *self.inner, *self.strays)
        return tuple(filter(None, tags))


class OutputParser(ABC):
    """A streaming parser of one answer.

    The parts are the same however the text is divided among calls of `push`, and never contain a
    piece of a tag. Text that only looks like a call is emitted unchanged, at the latest by
    `finish`: nothing is lost except a call that was cut off.
    """

    def __init__(self) -> None:
        self._text = IncomingText()
        self._parts: list[Part] = []
        self._waiting: list[str] = []
        self._wanted: Wanted = ""
        self._cut = False
        self._reading = self._read()

    @property
    @abstractmethod
    def tags(self) -> frozenset[str]:
        """Return texts that must reach the parser even if they are control tokens."""

    @abstractmethod
    def _read(self) -> Reader[None]:
        """Read the answer, and add to its parts."""

    def push(self, text: str) -> list[Part]:
        """Take the next piece of the answer, and return the parts that are certain by now."""
        self._waiting.append(text)
        wanted = self._wanted
        # Pieces in which the reader could not go on are only collected: resuming it costs more.
        arrived = wanted in text if isinstance(wanted, str) else wanted(text)
        return self._go_on() if arrived else []

    def finish(self, *, cut: bool = False) -> list[Part]:
        """Return the remaining parts at the end of the answer.

        Parameters
        ----------
        cut : bool
            Whether the answer was cut off. An unfinished call is dropped then: its text is not for
            the user, and its arguments may be incomplete.
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
    """A stream of text without white space at its ends: spaces wait for the text after them."""

    def __init__(self, kind: type[Content] | type[Thinking], *, begun: bool = False) -> None:
        self._kind = kind
        self._begun = begun
        self._spaces = ""

    def push(self, text: str) -> list[Part]:
        """Take a piece of text, and return it up to its last character that is not a space."""
        text = self._spaces + text
        if not self._begun:
            text = text.lstrip()
        ready = text.rstrip()
        self._spaces = text[len(ready) :]
        self._begun = self._begun or bool(ready)
        return [self._kind(ready)] if ready else []

    @property
    def begun(self) -> bool:
        """Return whether there was text other than white space, or the start counts as such."""
        return self._begun

    def restart(self) -> None:
        """Start a new text: drop held spaces, and skip those at its start."""
        self._begun, self._spaces = False, ""

    def rest(self) -> list[Part]:
        """Return the spaces at the end."""
        text, self._spaces = self._spaces, ""
        return [self._kind(text)] if text else []


class Tags:
    """A set of tags, to find the first one in a text."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = sorted(set(filter(None, tags)), key=len, reverse=True)
        pattern = "|".join(map(re.escape, self._tags)) or r"(?!)"
        self._pattern = re.compile(pattern)
        self._spaced = re.compile(rf"\s*+({pattern})")
        self._longest = len(self._tags[0]) if self._tags else 0

    def begin(self, text: str, at: int) -> bool:
        """Return whether one of the tags comes next."""
        return self._pattern.match(text, at) is not None

    def match_after_spaces(self, text: IncomingText) -> re.Match[str] | None:
        """Match white space and a tag; None if there is none, or a longer one may still arrive."""
        found = self._spaced.match(text.text, text.at)
        if found is None or found.start(1) + self._longest > len(text.text):
            return None
        return found

    def has_one(self, text: IncomingText) -> bool:
        """Return whether one of the tags has arrived."""
        return self._pattern.search(text.text, text.at) is not None

    def next(self, text: IncomingText) -> tuple[int, str]:
        """Return the end of the text before any tag, and the tag there if it has arrived.

        Of two at one place it is the longer one, which may have to wait for the next piece.
        """
        found = self._pattern.search(text.text, text.at)
        size = len(text.text)
        if found is not None and found.start() + self._longest <= size:
            # No longer tag can begin at that place: it would have been found.
            return found.start(), found[0]
        tail = max(text.at, size - self._longest + 1) if self._tags else size
        if text.ended or (found is not None and found.start() < tail):
            return (found.start(), found[0]) if found else (size, "")
        begun = tail + count_safe(text.text[tail:], self._tags)
        if found is None or begun < found.start():
            return begun, ""
        rest = text.text[found.start() :]
        if any(len(tag) > len(rest) and tag.startswith(rest) for tag in self._tags):
            return found.start(), ""
        return found.start(), found[0]


class SpanParser(OutputParser):
    """A parser of text with spans.

    Parameters
    ----------
    spans : sequence of Span
        The spans of the format.
    tools : sequence of mappings
        Functions that may be called.
    prompt : str
        The text that the model continues; if it ends within a span of reasoning, the answer begins
        there.
    first : callable or None
        Reader of calls at the beginning of the answer without a tag.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        tools: Tools = (),
        prompt: str = "",
        first: Callable[[Body], Reader[bool]] | None = None,
    ) -> None:
        super().__init__()
        self._spans: dict[str, Span] = {}
        for span in spans:
            self._spans.setdefault(span.opening, span)
        self._offered = OfferedTools(tools)
        self._strays = frozenset(t for s in self._spans.values() for t in s.strays)
        self._openings = Tags((*self._spans, *self._strays))
        self._interrupting = tuple(s.opening for s in self._spans.values() if s.interrupts)
        self._calls = tuple(s for s in self._spans.values() if s.read and not s.interrupts)
        self._closings: dict[str, Tags] = {}
        self._content = Trimmed(Content, begun=True)
        self._retries = 0
        self._first = first if tools else None
        end = prompt.rstrip()
        self._begun = max(
            (s for s in self._spans.values() if _opens(s, end)),
            key=lambda span: len(span.opening),
            default=None,
        )

    @property
    def tags(self) -> frozenset[str]:
        """Return texts that must reach the parser even if they are control tokens."""
        return frozenset(tag for span in self._spans.values() for tag in span.tags)

    def _read(self) -> Reader[None]:
        begun = self._begun
        if begun is not None:
            yield from self._read_calls("", begun.read.read) if begun.read else self._stream(begun)
        fresh = True
        while True:
            if self._first is not None and fresh and self._may_begin():
                fresh = yield from self._read_bare(self._first)
                continue
            opening = yield from self._read_text()
            if not opening:
                return
            span = self._spans[opening]
            if span.read is None:
                fresh = yield from self._stream(span)
                continue
            fresh = self._match_calls(span.read)
            if not fresh:
                fresh = yield from self._read_calls(opening, span.read.read)

    def _may_begin(self) -> bool:
        """Return whether calls without a tag may come next, by their first character."""
        text = self._text.text
        found = _NEXT.match(text, self._text.at)
        if found is None:
            return True
        return found[1] in "{[`" and not self._openings.begin(text, found.start(1))

    def _read_text(self) -> Reader[str]:
        """Emit text up to a tag, and return the tag, or "" at the end of the answer."""
        while True:
            end, tag = self._openings.next(self._text)
            if end > self._text.at:
                self._give(self._content, end)
            if tag in self._spans:
                self._text.at += len(tag)
                return tag
            if tag:
                self._pass_stray(tag)
                continue
            if self._text.ended:
                self._parts += self._content.rest()
                return ""
            yield ""

    def _pass_stray(self, tag: str) -> None:
        """Drop a closing tag directly after a call or reasoning; elsewhere it is text."""
        if self._content.begun:
            self._give(self._content, self._text.at + len(tag))
        else:
            self._text.at += len(tag)

    def _within(self, span: Span) -> Sequence[str]:
        """Return the tags that are looked for in a span, besides those that close it."""
        if span.unwrapped:
            return ()
        return (*self._interrupting, *(each.opening for each in self._calls))

    def _read_last_calls(self, span: Span) -> Reader[bool]:
        """Read calls in reasoning that are the end of the answer; return whether they are.

        Models forget the closing tag before a call. A call that is followed by text is one that the
        model only thinks of.
        """
        text, fed, calls = self._text, 0, list[ToolCall]()
        self._retries += 1
        if self._retries > _RETRIES:
            return False
        inner = SpanParser((*self._calls, *map(Span, span.closings)))
        inner._offered = self._offered
        while True:
            source, ended = text.text[text.at :], text.ended
            parts = inner.push(source[fed:])
            fed = len(source)
            parts += inner.finish(cut=self._cut) if ended else []
            for part in parts:
                if isinstance(part, ToolCall):
                    calls.append(part)
                elif part.text.strip():
                    return False
            if ended or any(call.name not in self._offered for call in calls):
                break
            yield ""
        if not calls or not ended:
            return False
        self._parts += calls
        text.at = len(text.text)
        return True

    def _give(self, into: Trimmed, end: int) -> None:
        self._parts += into.push(self._text.text[self._text.at : end])
        self._text.at = end

    def _stream(self, span: Span) -> Reader[bool]:
        """Emit a span without calls as it comes; return whether a call without a tag may follow."""
        if not span.closings:
            return False
        into = self._content if span.unwrapped else Trimmed(Thinking)
        tags = self._closings.get(span.opening)
        if tags is None:
            tags = self._closings[span.opening] = Tags((*span.closings, *self._within(span)))
        if not span.unwrapped:
            # Some models repeat the tag that the prompt ends with.
            yield from self._text.skip_spaces()
            yield from self._text.take(span.opening)
        tag = yield from self._stream_into(into, tags, span)
        if tag is None:
            return False
        if tag in span.closings:
            self._text.at += len(tag)
        # White space beside the tags of an answer is not part of it.
        self._content.restart()
        return not span.unwrapped

    def _stream_into(self, into: Trimmed, tags: Tags, span: Span) -> Reader[str | None]:
        """Emit text up to a tag that ends the span, "" for calls at the end; None at the end."""
        while True:
            end, tag = tags.next(self._text)
            self._give(into, end)
            if tag in span.closings or tag in self._interrupting:
                return tag
            if tag:
                if (yield from self._read_last_calls(span)):
                    return ""
                self._give(into, self._text.at + len(tag))
            elif self._text.ended:
                return None
            else:
                yield ""

    def _add_call(self, call: ToolCall) -> None:
        self._parts.append(call)
        self._content.restart()

    def _read_bare(self, first: Callable[[Body], Reader[bool]]) -> Reader[bool]:
        """Read calls without a tag; return whether there were any."""
        body, text = Body(self._text, self._offered, self._add_call), self._text
        text.mark()
        text.fell_short = False
        try:
            found = yield from first(body)
        except (ValueError, RecursionError):
            found = False
        if found or body.given:
            text.drop_mark()
            return True
        text.rewind()
        if text.fell_short and self._cut and read_partial_name(text.text, text.at) in self._offered:
            text.at = len(text.text)
        return False

    def _match_calls(self, reader: SpanReader) -> bool:
        """Read spans with calls that have arrived as a whole, with white space between them.

        It costs a tenth of the steps of `_read_calls`, which reads any other span.
        """
        text, spans, matched = self._text, self._spans, False
        at = text.at
        if text.text.find(reader.end, at, at + _NEAR) < 0:
            return False
        try:
            while (found := reader.match(text.text, at, self._offered)) is not None:
                matched = True
                self._parts += found[0]
                text.at = found[1]
                again = self._openings.match_after_spaces(text)
                if again is None or (following := spans.get(again[1])) is None:
                    break
                if following.read is None:
                    break
                reader, at = following.read, again.end()
        except (ValueError, RecursionError):
            # `_read_calls` decides about it.
            pass
        if matched:
            self._content.restart()
        return matched

    def _read_calls(self, opening: str, read: Callable[[Body], Reader[None]]) -> Reader[bool]:
        """Read a span with calls; return whether a call without a tag may follow."""
        body, text = Body(self._text, self._offered, self._add_call), self._text
        text.mark()
        text.fell_short = False
        try:
            yield from read(body)
        except (ValueError, RecursionError) as error:
            # An answer that ended early may still be read leniently; one that follows another
            # grammar is text.
            if not (isinstance(error, FormatMismatch) and text.fell_short):
                rest = text.end_mark()
                self._parts += self._content.push(rest if body.given else opening + rest)
                return False
        else:
            text.drop_mark()
            return True
        text.rewind()
        if not self._cut:
            return self._reread_leniently("" if body.given else opening, read)
        text.at = len(text.text)
        return False

    def _reread_leniently(self, opening: str, read: Callable[[Body], Reader[None]]) -> bool:
        """Read a span without an end as far as possible, or take its opening tag as text."""
        body, text = Body(self._text, self._offered, self._add_call), self._text
        body.lenient = True
        text.mark()
        try:
            # The text is complete, so the reader never waits.
            for _ in read(body):
                raise AssertionError
            text.drop_mark()
            return True
        except (ValueError, RecursionError):
            text.rewind()
            self._parts += self._content.push("" if body.given else opening)
            self._retries += 1
            if self._retries > _RETRIES:
                self._give(self._content, len(text.text))
            return False


def _opens(span: Span, end: str) -> bool:
    """Return whether the end of a prompt opens the span."""
    return bool(span.closings or span.read) and end.endswith(span.opening.rstrip())
