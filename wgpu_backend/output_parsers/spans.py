"""The machine behind most formats: text with spans between tags."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wgpu_backend.output_parsers.calls import Tools
from wgpu_backend.output_parsers.held import JsonEnd, first_of, shown
from wgpu_backend.output_parsers.parts import Content, Part, Thinking, ToolCall

_ENDS = ("}", "]", "</function>")  # of whole calls

Decode = Callable[[str, Tools], Sequence[ToolCall]]
"""Makes calls of what stands in a span; a ValueError where there are none."""


@dataclass(frozen=True, slots=True)
class Span:
    """What stands between two tags.

    Parameters
    ----------
    opening : str
    closings : tuple of str
        Any of them ends the span; with none, the end of a JSON value does.
    decode : callable or None
        None where it is reasoning, which is given as it comes; or ``unwrapped``.
    unwrapped : bool
        The tags go, and what is between them is text for the user.
    """

    opening: str
    closings: tuple[str, ...] = ()
    decode: Decode | None = None
    unwrapped: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of the span."""
        return (self.opening, *self.closings)


class OutputParser(ABC):
    """Takes an answer apart while it is made.

    The parts are the same however the text is divided among calls of `push`, and never hold
    a piece of a tag. Text that looks like a call and is none is given as it stands, at the latest
    by `finish`: nothing is lost but a call that was cut.
    """

    @property
    @abstractmethod
    def tags(self) -> frozenset[str]:
        """Texts that have to reach the parser, also where they are control tokens."""

    @abstractmethod
    def push(self, text: str) -> list[Part]:
        """Take the next piece of the answer, and give what is certain by now."""

    @abstractmethod
    def finish(self, *, cut: bool = False) -> list[Part]:
        """Give what was held back, at the end of the answer.

        Parameters
        ----------
        cut : bool
            Whether the model would have gone on. A call that it had not ended is left out then:
            its text is for nobody, and what it has of arguments may be wrong.
        """


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


class SpanParser(OutputParser):
    """Parser of text with spans.

    Parameters
    ----------
    spans : sequence of Span
    tools : sequence of mappings
        Functions that may be called.
    prompt : str
        What the model continues; where it ends within a span of reasoning, the answer begins there.
    """

    def __init__(self, spans: Sequence[Span], tools: Tools = (), prompt: str = "") -> None:
        self._spans = {span.opening: span for span in spans}
        self._openings = tuple(self._spans)
        self._tools = tools
        self._held = ""
        self._body = ""
        self._end = JsonEnd()
        self._content = Trimmed(Content, begun=True)
        self._thinking = Trimmed(Thinking)
        self._within: Span | None = None
        for span in spans:
            if span.decode is None and prompt.rstrip().endswith(span.opening):
                self._within = span

    @property
    def tags(self) -> frozenset[str]:
        """Texts that have to reach the parser, also where they are control tokens."""
        return frozenset(tag for span in self._spans.values() for tag in span.tags)

    def push(self, text: str) -> list[Part]:
        """Take the next piece of the answer, and give what is certain by now."""
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """Go on to the next tag; false where it has not come yet."""
        if self._within is None:
            return self._outside(parts)
        if self._within.decode is None:
            return self._streamed(self._within, parts)
        if self._within.closings:
            return self._to_closing(self._within, parts)
        return self._to_json_end(self._within, parts)

    def _outside(self, parts: list[Part]) -> bool:
        found = first_of(self._held, self._openings)
        if found is None:
            self._give(self._content, shown(self._held, self._openings), parts)
            return False
        at, opening = found
        self._give(self._content, at, parts)
        self._held = self._held[len(opening) :]
        self._within = self._spans[opening]
        return True

    def _streamed(self, span: Span, parts: list[Part]) -> bool:
        into = self._content if span.unwrapped else self._thinking
        found = first_of(self._held, span.closings)
        if found is None:
            self._give(into, shown(self._held, span.closings), parts)
            return False
        at, closing = found
        self._give(into, at, parts)
        self._held = self._held[len(closing) :]
        self._leave(fresh=not span.unwrapped)
        return True

    def _leave(self, *, fresh: bool) -> None:
        """Go on outside of spans; spaces around what was in a span are none of the answer's."""
        self._within, self._body, self._end = None, "", JsonEnd()
        if fresh:
            self._content = Trimmed(Content)
            self._thinking = Trimmed(Thinking)

    def _to_closing(self, span: Span, parts: list[Part]) -> bool:
        # Only what is new, and a closing tag that began before it.
        start = max(0, len(self._body) - max(map(len, span.closings)))
        self._body += self._held
        self._held = ""
        found = first_of(self._body, span.closings, start)
        if found is None:
            return False
        at, closing = found
        body, self._held = self._body[:at], self._body[at + len(closing) :]
        self._called(span, body, closing, parts)
        return True

    def _to_json_end(self, span: Span, parts: list[Part]) -> bool:
        size = self._end.push(self._held)
        taken, self._held = self._held[:size], "" if size is None else self._held[size:]
        self._body += taken
        if size is None:
            return False
        self._called(span, self._body, "", parts)
        return True

    def _called(self, span: Span, body: str, closing: str, parts: list[Part]) -> None:
        try:
            assert span.decode is not None
            parts += span.decode(body, self._tools)
        except (ValueError, RecursionError):
            parts += self._content.push(span.opening + body + closing)
            self._leave(fresh=False)
        else:
            self._leave(fresh=True)

    def _give(self, into: Trimmed, size: int, parts: list[Part]) -> None:
        parts += into.push(self._held[:size])
        self._held = self._held[size:]

    def _unfinished(self, span: Span, body: str) -> bool:
        """Whether this is the beginning of a call; some decoders take one as they find it."""
        assert span.decode is not None
        try:
            span.decode(body, self._tools)
        except (ValueError, RecursionError):
            return True
        return not body.rstrip().endswith(_ENDS)

    def finish(self, *, cut: bool = False) -> list[Part]:
        """Give what was held back, at the end of the answer; of a call that was cut nothing."""
        parts: list[Part] = []
        span = self._within
        if span is not None and span.decode is not None:
            body, self._held = self._body + self._held, ""
            if not (cut and self._unfinished(span, body)):
                # The end token may stand in for the closing tag.
                self._called(span, body, "", parts)
        elif span is not None and not span.unwrapped:
            self._give(self._thinking, len(self._held), parts)
        self._give(self._content, len(self._held), parts)
        return [*parts, *self._content.rest()]
