"""Gemma: ``call:name{key:value}`` between tags, with a special tag for quotation marks.

FunctionGemma writes ``<start_function_call>call:weather{city:<escape>Oslo<escape>}
<end_function_call>``, Gemma 4 ``<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>``.
Gemma 3, which has no tags, writes JSON or Python in a code block.
"""

from __future__ import annotations

import re

from wgpu_backend.text.output_parsers.calls import OfferedTools
from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.incoming_text import (
    FormatMismatch,
    IncomingText,
    Reader,
    arrival,
)
from wgpu_backend.text.output_parsers.kinds import Kinds
from wgpu_backend.text.output_parsers.literals import Notation
from wgpu_backend.text.output_parsers.parts import ToolCall
from wgpu_backend.text.output_parsers.patterns import compile_possessive
from wgpu_backend.text.output_parsers.readers import json_reader, python_reader, skip_closing
from wgpu_backend.text.output_parsers.spans import Body, Matched, Span, SpanReader
from wgpu_backend.text.output_parsers.values import convert

_QUOTES = ("<escape>", '<|"|>')
_MAX_DEPTH = 100
_NAME = re.compile(r"[\w.\-]*")
_PLAIN = compile_possessive(
    # Including strings whose end has arrived.
    r"(?:[^<{}\[\]]++|"
    + "|".join(rf"{q}[^<]*+(?:(?!{q})<[^<]*+)*+{q}" for q in map(re.escape, _QUOTES))
    + ")*+"
)
_CALL = compile_possessive(rf"\s*+call:({_NAME.pattern}+)(\{{{_PLAIN.pattern}\}})")
_SIMPLE = re.compile(rf"\s*+call:({_NAME.pattern.removesuffix('*')}++)\{{")
_PAIR = compile_possessive(
    r'([^:{}\[\],<>\s]++):(?:<\|"\|>([^<]*+(?:(?!<\|"\|>)<[^<]*+)*+)<\|"\|>|(-?\d{1,15}+|true|false))'
    r"(?:,|(?=\}))"
)
_BARE = re.compile(r"[^,\[\]{}]*+")
_ANY = Kinds()
_KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:\s*+")


class _Reader(Notation):
    """A parser of Gemma's notation."""

    def value(self, at: int, depth: int) -> tuple[object, int]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH}")
        mark = self.text[at : at + 1]
        if mark == "{":
            return self.mapping(at + 1, depth)
        if mark == "[":
            return self.list(at + 1, "]", depth)
        if mark == "<":
            for quote in _QUOTES:
                if self.text.startswith(quote, at):
                    return self.read_quoted(at + len(quote), quote)
        bare = _BARE.match(self.text, at)
        assert bare is not None
        return convert(bare[0].strip(), _ANY), bare.end()

    def read_quoted(self, at: int, quote: str) -> tuple[str, int]:
        end = self.text.find(quote, at)
        if end < 0:
            raise ValueError("a string has no closing mark")
        return self.text[at:end], end + len(quote)

    def key(self, at: int, depth: int) -> tuple[str, int]:
        key = _KEY.match(self.text, at)
        if key is None:
            raise ValueError("a key was expected")
        name = key[1]
        if "<" in name:
            for quote in _QUOTES:
                name = name.replace(quote, "")
        return name, key.end()


def _calls_reader(closing: str) -> SpanReader:
    arrived = arrival(closing)

    def read(body: Body) -> Reader[None]:
        text = body.text
        # A call is emitted when it is complete, so that nothing is lost by waiting for its last
        # tag.
        if not text.ended and text.text.find(closing, text.at) < 0:
            yield arrived
        if (simple := _match_simple_call(text.text, text.at)) is not None:
            found, text.at = simple
            body.give((found,))
            if text.text.startswith(closing, text.at):
                text.at += len(closing)
            else:
                yield from skip_closing(body, closing)
            return
        if (call := text.skip(_CALL)) is not None:
            name, source = call.groups()
        else:
            yield from text.skip_spaces()
            yield from text.expect("call:")
            name = yield from text.read_while(_NAME)
            source = yield from _read_braces(text)
        arguments, end = _Reader(source).mapping(1, 0)
        if not name or end < len(source):
            raise ValueError("the tool call has no name, or text follows it")
        body.give([ToolCall(name, arguments)])
        yield from skip_closing(body, closing)

    def match(text: str, at: int, offered: OfferedTools) -> Matched:
        del offered
        simple = _match_simple_call(text, at)
        if simple is None or not text.startswith(closing, simple[1]):
            return None
        return simple[:1], simple[1] + len(closing)

    return SpanReader(read, match, closing)


def _match_simple_call(text: str, at: int) -> tuple[ToolCall, int] | None:
    """Parse a call of strings, integers and booleans; return it and the place after it.

    This is `_Reader` in few steps. The result is None if there is anything else.
    """
    begun = _SIMPLE.match(text, at)
    if begun is None:
        return None
    arguments, at = dict[str, object](), begun.end()
    while (pair := _PAIR.match(text, at)) is not None:
        key, string, bare = pair.groups()
        arguments[key] = string if bare is None else convert(bare, _ANY)
        at = pair.end()
    return (ToolCall(begun[1], arguments), at + 1) if text.startswith("}", at) else None


def _read_braces(text: IncomingText) -> Reader[str]:
    """Return a value in braces; braces in quotation marks do not count."""
    taken, depth = list[str](), 0
    if (yield from text.peek()) != "{":
        raise FormatMismatch("the tool call has no arguments in braces")
    while True:
        taken.append((yield from text.read_while(_PLAIN)))
        tag = yield from text.take("<escape>", '<|"|>', "{", "}", "[", "]")
        if tag is None:
            yield from text.wait() if text.at == len(text.text) else text.expect('<|"|>')
            continue
        taken.append(tag)
        if tag in _QUOTES:
            taken += [(yield from text.read_until(tag)), tag]
        depth += (tag in ("{", "[")) - (tag in ("}", "]"))
        if depth > _MAX_DEPTH:
            raise FormatMismatch(f"nested deeper than {_MAX_DEPTH}")
        if not depth:
            return "".join(taken)


def _form(template: str) -> CallForm:
    """Return Gemma 3's form, which is JSON; arguments in the others' notation follow no schema."""
    return CallForm(("```tool_call\n",), ("\n```",))


GEMMA = Format(
    "gemma",
    ("<start_function_call>", "<|tool_call>", "<start_of_turn>"),
    (
        Span(
            "<start_function_call>",
            read=_calls_reader("<end_function_call>"),
            inner=("<end_function_call>", "<escape>"),
        ),
        Span("<|tool_call>", read=_calls_reader("<tool_call|>"), inner=("<tool_call|>", '<|"|>')),
        Span("```tool_call", read=json_reader("```")),
        Span("```tool_code", read=python_reader("```")),
    ),
    form=_form,
)
