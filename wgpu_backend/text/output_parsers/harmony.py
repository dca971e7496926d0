"""Harmony, the format of gpt-oss: messages with a channel and a recipient in their header.

::

    <|channel|>analysis<|message|>The user asks …<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>
    {"city": "Oslo"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It is cold.<|return|>
"""

from __future__ import annotations

import re
from contextlib import suppress

from wgpu_backend.text.output_parsers.arriving import Broken, Reading
from wgpu_backend.text.output_parsers.calls import Tools, arguments_of
from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.parts import Content, Part, Thinking, ToolCall
from wgpu_backend.text.output_parsers.spans import OutputParser, Span, Tags

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START, _CHANNEL)
_ENDING = Tags(_ENDS)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_MAX_HEADER = 1000 + len(_MESSAGE)  # characters; a longer one is text


class HarmonyParser(OutputParser):
    """Parser of messages with headers; text without one is for the user."""

    @property
    def tags(self) -> frozenset[str]:
        """Texts that have to reach the parser, also where they are control tokens."""
        return frozenset((*_ENDS, _MESSAGE, "<|constrain|>"))

    def _read(self) -> Reading[None]:
        if (yield from self._text.starts(" to=")):  # the prompt may end in a message's beginning
            yield from self._headed()
        while True:
            tag = yield from self._said(Content)
            while tag in (_START, _CHANNEL):
                tag = yield from self._headed()
            if tag is None:
                return

    def _headed(self) -> Reading[str | None]:
        """Read a message with a header; which tag ends it, None for the answer's end."""
        text = self._text
        while (at := text.text.find(_MESSAGE, text.at, text.at + _MAX_HEADER)) < 0:
            if text.ended:
                text.at = len(text.text)
                return None
            if len(text.text) - text.at >= _MAX_HEADER:
                return (yield from self._said(Content))
            yield ""
        header = text.text[text.at : at]
        text.at = at + len(_MESSAGE)
        recipient = _RECIPIENT.search(header)
        if recipient:
            return (yield from self._called(recipient[1]))
        return (yield from self._said(Thinking if "analysis" in header else Content))

    def _said(self, kind: type[Content] | type[Thinking]) -> Reading[str | None]:
        """Give a message's text as it comes, and the tag that ends it."""
        text = self._text
        while True:
            end, tag = _ENDING.next(text)
            if end > text.at:
                self._parts.append(kind(text.text[text.at : end]))
            text.at = end + len(tag)
            if tag or text.ended:
                return tag or None
            yield ""

    def _called(self, name: str) -> Reading[str | None]:
        """Read the arguments of a call, and the tag that ends its message."""
        text, taken = self._text, list[str]()
        with suppress(Broken):
            if (yield from text.spaces()) == "{":
                text.mark()
                try:
                    taken.append((yield from text.bracketed()))
                    text.since()
                except Broken:
                    text.back()
                    raise
        while True:
            end, tag = _ENDING.next(text)
            taken.append(text.text[text.at : end])
            text.at = end + len(tag)
            if tag or text.ended:
                break
            yield ""
        arguments = "".join(taken)
        try:
            call: Part = ToolCall(name, arguments_of(arguments))
        except (ValueError, RecursionError):
            call = Content(arguments)
        whole = isinstance(call, ToolCall) and bool(arguments.strip())
        if tag or whole or not self._cut:
            self._parts.append(call)
        return tag or None


def _make(spans: tuple[Span, ...], tools: Tools, prompt: str) -> OutputParser:
    return HarmonyParser()


def _form(template: str) -> CallForm:
    header = (_CHANNEL, "commentary to=functions.{name} ", "<|constrain|>", "json", _MESSAGE)
    return CallForm(header, name_key="")


HARMONY = Format("harmony", ("<|channel|>",), make=_make, form=_form)
