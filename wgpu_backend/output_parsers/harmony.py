"""Harmony, the format of gpt-oss: messages with a channel and a recipient in their header.

::

    <|channel|>analysis<|message|>The user asks …<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>
    {"city": "Oslo"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It is cold.<|return|>
"""

from __future__ import annotations

import re

from wgpu_backend.output_parsers.calls import Tools, arguments_of
from wgpu_backend.output_parsers.formats import CallForm, Format
from wgpu_backend.output_parsers.held import first_of, shown
from wgpu_backend.output_parsers.parts import Content, Part, Thinking, ToolCall
from wgpu_backend.output_parsers.spans import OutputParser, Span

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_MAX_HEADER = 1000  # characters; a longer one is text


class HarmonyParser(OutputParser):
    """Parser of messages with headers; text without one is for the user."""

    def __init__(self) -> None:
        self._held = ""
        self._header: str | None = None  # of a message whose text is not begun
        self._kind: type[Content] | type[Thinking] = Content
        self._function = ""
        self._arguments = ""

    @property
    def tags(self) -> frozenset[str]:
        """Texts that have to reach the parser, also where they are control tokens."""
        return frozenset((*_ENDS, _MESSAGE, "<|constrain|>"))

    def push(self, text: str) -> list[Part]:
        """Take the next piece of the answer, and give what is certain by now."""
        self._held += text
        parts: list[Part] = []
        while self._in_text(parts) if self._header is None else self._in_header():
            pass
        return parts

    def _in_text(self, parts: list[Part]) -> bool:
        found = first_of(self._held, _ENDS)
        at, tag = found or (shown(self._held, _ENDS), "")
        self._give(self._held[:at], parts)
        self._held = self._held[at + len(tag) :]
        if not tag:
            return False
        self._end_message(parts)
        if tag in (_START, _CHANNEL):
            self._header = ""
        return True

    def _in_header(self) -> bool:
        assert self._header is not None
        at = self._held.find(_MESSAGE, 0, _MAX_HEADER + len(_MESSAGE))
        if at < 0:
            return self._no_header()
        header, self._held = self._held[:at], self._held[at + len(_MESSAGE) :]
        recipient = _RECIPIENT.search(header)
        self._header = None
        self._function = recipient[1] if recipient else ""
        self._kind = Thinking if "analysis" in header else Content
        return True

    def _no_header(self) -> bool:
        """Whether what is held is too long for a header; then it is text for the user."""
        if len(self._held) < _MAX_HEADER + len(_MESSAGE):
            return False
        self._header = None
        return True

    def _give(self, text: str, parts: list[Part]) -> None:
        if self._function:
            self._arguments += text
        elif text:
            parts.append(self._kind(text))

    def _end_message(self, parts: list[Part], *, cut: bool = False) -> None:
        if self._function:
            call = self._call()
            whole = isinstance(call, ToolCall) and bool(self._arguments.strip())
            parts += [call] if whole or not cut else []
        self._function, self._arguments, self._kind = "", "", Content

    def _call(self) -> Part:
        try:
            return ToolCall(self._function, arguments_of(self._arguments))
        except (ValueError, RecursionError):
            return Content(self._arguments)

    def finish(self, *, cut: bool = False) -> list[Part]:
        """Give what was held back, at the end of the answer; of a call that was cut nothing."""
        parts: list[Part] = []
        if self._header is None:
            self._give(self._held, parts)
        self._held = ""
        self._end_message(parts, cut=cut)
        return parts


def _make(spans: tuple[Span, ...], tools: Tools, prompt: str) -> OutputParser:
    return HarmonyParser()


def _form(template: str) -> CallForm:
    header = (_CHANNEL, "commentary to=functions.{name} ", "<|constrain|>", "json", _MESSAGE)
    return CallForm(header, name_key="")


HARMONY = Format("harmony", ("<|channel|>",), make=_make, form=_form)
