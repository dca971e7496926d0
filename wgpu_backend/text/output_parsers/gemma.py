"""Gemma: ``call:name{key:value}`` between tags, with a special tag for quotation marks.

FunctionGemma writes ``<start_function_call>call:weather{city:<escape>Oslo<escape>}
<end_function_call>``, Gemma 4 ``<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>``.
Gemma 3, which has no tags, writes JSON or Python in a code block.
"""

from __future__ import annotations

import re

from wgpu_backend.text.output_parsers.calls import OfferedTools, decode_json_at, parse_calls
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
    r'([^:{}\[\],<>\s"\']++):(?:<\|"\|>([^<]*+(?:(?!<\|"\|>)<[^<]*+)*+)<\|"\|>|(-?\d{1,15}+|true|false))'
    r"(?:,|(?=\}))"
)
_SINGLE = re.compile(r"'([^'\\]*+)'(?=\s*+[,}\]])")
_BARE = re.compile(r"[^,\[\]{}]*+")
_ANY = Kinds()
_CLOSINGS = {"{": "}", "[": "]"}
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
        if mark == '"' and (found := decode_json_at(self.text, at)) is not None:
            return found
        if mark == "'" and (single := _SINGLE.match(self.text, at)) is not None:
            return single[1], single.end()
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
        if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
            name = name[1:-1]
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
        elif (yield from text.skip_spaces()) == "{":
            body.give(parse_calls((yield from text.read_brackets())))
            yield from skip_closing(body, closing)
            return
        else:
            name, source = yield from _read_call(body, closing)
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


def _read_call(body: Body, closing: str) -> Reader[tuple[str, str]]:
    """Return a call's name and its arguments, whose braces may be missing if it has none."""
    text = body.text
    told = yield from text.take("call:")
    yield from text.skip_spaces()
    name = yield from text.read_while(_NAME)
    if not told and name not in body.offered:
        raise FormatMismatch("the text is not a tool call")
    if (yield from text.peek_tag(closing)):
        return name, "{}"
    return name, (yield from _read_braces(body, closing))


def _read_braces(body: Body, closing: str) -> Reader[str]:
    """Return a value in braces; braces in quotation marks do not count.

    Brackets that are missing before the closing tag are added, and so is the last quotation mark
    if the answer has no other.
    """
    text, taken, missing = body.text, list[str](), list[str]()
    if (yield from text.peek()) != "{":
        raise FormatMismatch("the tool call has no arguments in braces")
    while True:
        taken.append((yield from text.read_while(_PLAIN)))
        tag = yield from text.take("<escape>", '<|"|>', "{", "}", "[", "]")
        if tag is None:
            if (yield from text.peek_tag(closing)):
                return "".join([*taken, *reversed(missing)])
            yield from text.wait() if text.at == len(text.text) else text.expect('<|"|>')
            continue
        taken.append(tag)
        if tag not in _QUOTES:
            _count_bracket(tag, missing)
        elif body.lenient and text.text.find(tag, text.at) < 0:
            taken.append(_read_unclosed(text, closing, missing) + tag)
            return "".join([*taken, *reversed(missing)])
        else:
            taken += [(yield from text.read_until(tag)), tag]
        if not missing:
            return "".join(taken)


def _count_bracket(tag: str, missing: list[str]) -> None:
    """Update the closing brackets that are missing after a bracket."""
    if tag in _CLOSINGS:
        missing.append(_CLOSINGS[tag])
    elif not missing or missing.pop() != tag:
        raise FormatMismatch(f"{tag} without an opening bracket")
    if len(missing) > _MAX_DEPTH:
        raise FormatMismatch(f"nested deeper than {_MAX_DEPTH}")


def _read_unclosed(text: IncomingText, closing: str, missing: list[str]) -> str:
    """Return the text of a string without an end, in an answer that is complete.

    It ends before the brackets that close the call.
    """
    found = text.text.find(closing, text.at)
    end = found if found >= 0 else len(text.text)
    said, text.at = text.text[text.at : end], end
    for bracket in missing:
        bare = said.rstrip()
        if not bare.endswith(bracket):
            break
        said = bare.removesuffix(bracket)
    return said


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
            strays=("<end_function_call>", "<start_function_response>"),
        ),
        Span(
            "<|tool_call>",
            read=_calls_reader("<tool_call|>"),
            inner=("<tool_call|>", '<|"|>'),
            strays=("<tool_call|>", "<|tool_response>"),
        ),
        Span("```tool_call", read=json_reader("```")),
        Span("```tool_code", read=python_reader("```")),
    ),
    form=_form,
)
