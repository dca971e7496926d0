"""Gemma: ``call:name{key:value}`` between tags, with a tag of its own for quotation marks.

FunctionGemma writes ``<start_function_call>call:weather{city:<escape>Oslo<escape>}
<end_function_call>``, Gemma 4 ``<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>``.
Gemma 3, which has no tags, writes JSON in a code block.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from wgpu_backend.output_parsers.calls import Tools, calls_of, typed
from wgpu_backend.output_parsers.formats import CallForm, Format
from wgpu_backend.output_parsers.parts import ToolCall
from wgpu_backend.output_parsers.spans import Span

_QUOTES = ("<escape>", '<|"|>')
_MAX_DEPTH = 100
_BARE = re.compile(r"[^,\[\]{}]*")
_KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:")


class _Reader(NamedTuple):
    """Reads values; each method takes a place and gives the value and the place behind it."""

    text: str

    def value(self, at: int, depth: int = 0) -> tuple[object, int]:
        at = self.spaces(at)
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH}")
        for quote in _QUOTES:
            if self.text.startswith(quote, at):
                return self.quoted(at + len(quote), quote)
        if self.text.startswith("{", at):
            return self.mapping(at + 1, depth)
        if self.text.startswith("[", at):
            return self.list(at + 1, depth)
        bare = _BARE.match(self.text, at)
        assert bare is not None
        return typed(bare[0].strip(), None), bare.end()

    def spaces(self, at: int) -> int:
        while self.text[at : at + 1].isspace():
            at += 1
        return at

    def quoted(self, at: int, quote: str) -> tuple[str, int]:
        end = self.text.find(quote, at)
        if end < 0:
            raise ValueError("no end of a text")
        return self.text[at:end], end + len(quote)

    def mapping(self, at: int, depth: int) -> tuple[dict[str, object], int]:
        found: dict[str, object] = {}
        at = self.spaces(at)
        while not self.text.startswith("}", at):
            key = _KEY.match(self.text, at)
            if key is None:
                raise ValueError("no key")
            name = key[1]
            for quote in _QUOTES:
                name = name.replace(quote, "")
            found[name], at = self.value(key.end(), depth + 1)
            at = self.next(at, "}")
        return found, at + 1

    def list(self, at: int, depth: int) -> tuple[list[object], int]:
        found: list[object] = []
        at = self.spaces(at)
        while not self.text.startswith("]", at):
            item, at = self.value(at, depth + 1)
            found.append(item)
            at = self.next(at, "]")
        return found, at + 1

    def next(self, at: int, end: str) -> int:
        """Place behind a comma, or of the end."""
        at = self.spaces(at)
        if self.text.startswith(",", at):
            return self.spaces(at + 1)
        if not self.text.startswith(end, at):
            raise ValueError(f"no {end}")
        return at


def _calls(body: str, tools: Tools) -> list[ToolCall]:
    text = body.strip()
    name, brace, _ = text.partition("{")
    if not name.startswith("call:") or not brace:
        raise ValueError("no call")
    arguments, end = _Reader(text).mapping(len(name) + 1, 0)
    if text[end:].strip():
        raise ValueError("more than a call")
    return [ToolCall(name.removeprefix("call:").strip(), arguments)]


def _block(body: str, tools: Tools) -> list[ToolCall]:
    return calls_of(body)


def _form(template: str) -> CallForm:
    """Gemma 3's form, which has JSON; arguments in the others' notation follow no schema."""
    return CallForm(("```tool_call\n",), ("\n```",))


GEMMA = Format(
    "gemma",
    ("<start_function_call>", "<|tool_call>", "<start_of_turn>"),
    (
        Span("<start_function_call>", ("<end_function_call>",), _calls),
        Span("<|tool_call>", ("<tool_call|>",), _calls),
        Span("```tool_call", ("```",), _block),
    ),
    form=_form,
)
