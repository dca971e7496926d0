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

from wgpu_backend.text.output_parsers.calls import Tools, decode_json_at, parse_arguments
from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.incoming_text import FormatMismatch, Reader, arrival
from wgpu_backend.text.output_parsers.parts import Content, Part, Thinking, ToolCall
from wgpu_backend.text.output_parsers.spans import OutputParser, Span, Tags

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START, _CHANNEL)
_ENDING = Tags(_ENDS)
_arrived = arrival(*_ENDS)
_CALL = re.compile(r"\s*+(?=\{)")
_CALL_END = re.compile(rf"\s*+({'|'.join(map(re.escape, _ENDS))})")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
# The marks of a code block, which some fine-tunes write around the arguments.
_FENCES = re.compile(r"\A\s*```\w*\s*(?=\{)|(?<=\})\s*```\s*\Z")
# Characters of a header; a longer one is taken as text.
_MAX_HEADER = 1000 + len(_MESSAGE)


class HarmonyParser(OutputParser):
    """A parser of messages with headers; text without a header is for the user."""

    @property
    def tags(self) -> frozenset[str]:
        """Return texts that must reach the parser even if they are control tokens."""
        return frozenset((*_ENDS, _MESSAGE, "<|constrain|>"))

    def _read(self) -> Reader[None]:
        # The prompt may end with the beginning of a message.
        if (yield from self._text.peek_tag(" to=")):
            yield from self._read_message()
        while True:
            tag = yield from self._read_text(Content)
            while tag in (_START, _CHANNEL):
                tag = yield from self._read_message()
            if tag is None:
                return

    def _read_message(self) -> Reader[str | None]:
        """Read a message with a header; return the tag that ends it, or None at the end."""
        text = self._text
        while (at := text.text.find(_MESSAGE, text.at, text.at + _MAX_HEADER)) < 0:
            if text.ended:
                text.at = len(text.text)
                return None
            if len(text.text) - text.at >= _MAX_HEADER:
                return (yield from self._read_text(Content))
            yield ""
        header = text.text[text.at : at]
        text.at = at + len(_MESSAGE)
        recipient = _RECIPIENT.search(header)
        if recipient:
            return (yield from self._read_call(recipient[1]))
        return (yield from self._read_text(Thinking if "analysis" in header else Content))

    def _read_text(self, kind: type[Content] | type[Thinking]) -> Reader[str | None]:
        """Emit a message's text as it comes; return the tag that ends it."""
        text = self._text
        while True:
            end, tag = _ENDING.next(text)
            if end > text.at:
                self._parts.append(kind(text.text[text.at : end]))
            text.at = end + len(tag)
            if tag or text.ended:
                return tag or None
            yield ""

    def _read_call(self, name: str) -> Reader[str | None]:
        """Read the arguments of a call; return the tag that ends its message."""
        text, taken = self._text, list[str]()
        if not text.ended and not _ENDING.has_one(text):
            # The call is emitted when its message ends.
            yield _arrived
        found = _CALL.match(text.text, text.at)
        value = decode_json_at(text.text, found.end()) if found else None
        if value is not None and (end := _CALL_END.match(text.text, value[1])) is not None:
            text.at = end.end()
            self._parts.append(ToolCall(name, parse_arguments(value[0])))
            return end[1]
        with suppress(FormatMismatch):
            if (yield from text.skip_spaces()) == "{":
                text.mark()
                try:
                    taken.append((yield from text.read_brackets()))
                    text.end_mark()
                except FormatMismatch:
                    text.rewind()
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
            bare = _FENCES.sub("", arguments) if "```" in arguments else arguments
            call: Part = ToolCall(name, parse_arguments(bare))
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
