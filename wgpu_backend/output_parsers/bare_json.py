"""Calls that are written as JSON and nothing else, where the answer begins.

``{"name": "weather", "arguments": {"city": "Oslo"}}``, or a list of such objects. As an answer may
be JSON as well, only functions that were offered count as called. Hermes' tags are understood,
too: they are what most models know that their template tells nothing.
"""

from __future__ import annotations

import re

from wgpu_backend.output_parsers.calls import Tools, calls_of, names
from wgpu_backend.output_parsers.formats import CallForm, Format
from wgpu_backend.output_parsers.parts import Part, ToolCall
from wgpu_backend.output_parsers.qwen import QWEN
from wgpu_backend.output_parsers.spans import OutputParser, Span, SpanParser

_NAME = re.compile(r'[\s\[{]*"(?:name|function)"\s*:\s*"([^"]*)"')


def _offered(body: str, tools: Tools) -> list[ToolCall]:
    found, offered = calls_of(body), names(tools)
    for call in found:
        if call.name not in offered:
            raise ValueError(f"{call.name}: no such function")
    return found


_BARE = Span("", (), _offered)


class BareJsonParser(SpanParser):
    """Parser of text with spans, which may begin with calls as plain JSON."""

    def __init__(self, spans: tuple[Span, ...], tools: Tools = (), prompt: str = "") -> None:
        super().__init__(spans, tools, prompt)
        self._fresh = bool(tools)

    def _outside(self, parts: list[Part]) -> bool:
        if not self._fresh:
            return super()._outside(parts)
        text = self._held.lstrip()
        if not text:
            return False
        if text[0] not in "{[" or any(tag.startswith(text[:1]) for tag in self._openings):
            self._fresh = False
            return super()._outside(parts)
        self._give(self._content, len(self._held) - len(text), parts)
        self._within = _BARE
        return True

    def _unfinished(self, span: Span, body: str) -> bool:
        """Whether this is the beginning of a call; other JSON may be the answer itself."""
        named = _NAME.match(body) if span is _BARE else None
        if span is _BARE and (named is None or named[1] not in names(self._tools)):
            return False
        return super()._unfinished(span, body)

    def _leave(self, *, fresh: bool) -> None:
        super()._leave(fresh=fresh)
        self._fresh = fresh and bool(self._tools)


def _form(template: str) -> CallForm:
    return CallForm()


def _make(spans: tuple[Span, ...], tools: Tools, prompt: str) -> OutputParser:
    return BareJsonParser(spans, tools, prompt)


JSON = Format("json", (), QWEN.calls, make=_make, form=_form)
