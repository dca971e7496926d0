"""Gemma: ``call:name{key:value}`` between tags, with a tag of its own for quotation marks.

FunctionGemma writes ``<start_function_call>call:weather{city:<escape>Oslo<escape>}
<end_function_call>``, Gemma 4 ``<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>``.
Gemma 3, which has no tags, writes JSON or Python in a code block.
"""

from __future__ import annotations

import re

from wgpu_backend.text.output_parsers.arriving import Arriving, Broken, Reading
from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.kinds import Kinds
from wgpu_backend.text.output_parsers.literals import Notation
from wgpu_backend.text.output_parsers.parts import ToolCall
from wgpu_backend.text.output_parsers.readers import closed, json_calls, python_list
from wgpu_backend.text.output_parsers.spans import Body, Read, Span
from wgpu_backend.text.output_parsers.values import typed

_QUOTES = ("<escape>", '<|"|>')
_MAX_DEPTH = 100
_NAME = re.compile(r"[\w.\-]*")
_PLAIN = re.compile(
    # With texts whose end is there.
    r"(?:[^<{}\[\]]++|"
    + "|".join(rf"{q}[^<]*+(?:(?!{q})<[^<]*+)*+{q}" for q in map(re.escape, _QUOTES))
    + ")*+"
)
_CALL = re.compile(rf"\s*+call:({_NAME.pattern}+)(\{{{_PLAIN.pattern}\}})")
_BARE = re.compile(r"[^,\[\]{}]*+")
_ANY = Kinds()
_KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:\s*+")


class _Reader(Notation):
    """Reads Gemma's notation."""

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
                    return self.quoted(at + len(quote), quote)
        bare = _BARE.match(self.text, at)
        assert bare is not None
        return typed(bare[0].strip(), _ANY), bare.end()

    def quoted(self, at: int, quote: str) -> tuple[str, int]:
        end = self.text.find(quote, at)
        if end < 0:
            raise ValueError("no end of a text")
        return self.text[at:end], end + len(quote)

    def key(self, at: int, depth: int) -> tuple[str, int]:
        key = _KEY.match(self.text, at)
        if key is None:
            raise ValueError("no key")
        name = key[1]
        if "<" in name:
            for quote in _QUOTES:
                name = name.replace(quote, "")
        return name, key.end()


def _calls(closing: str) -> Read:
    def read(body: Body) -> Reading[None]:
        text = body.text
        if (call := text.passed(_CALL)) is not None:
            name, source = call.groups()
        else:
            yield from text.spaces()
            yield from text.expect("call:")
            name = yield from text.run(_NAME)
            source = yield from _braced(text)
        arguments, end = _Reader(source).mapping(1, 0)
        if not name or end < len(source):
            raise ValueError("no name, or more than a call")
        body.give([ToolCall(name, arguments)])
        yield from closed(body, closing)

    return read


def _braced(text: Arriving) -> Reading[str]:
    """A value in braces; those within quotation marks are not counted."""
    taken, depth = list[str](), 0
    if (yield from text.peek()) != "{":
        raise Broken("no arguments")
    while True:
        taken.append((yield from text.run(_PLAIN)))
        tag = yield from text.took("<escape>", '<|"|>', "{", "}", "[", "]")
        if tag is None:
            yield from text.more() if text.at == len(text.text) else text.expect('<|"|>')
            continue
        taken.append(tag)
        if tag in _QUOTES:
            taken += [(yield from text.until(tag)), tag]
        depth += (tag in ("{", "[")) - (tag in ("}", "]"))
        if depth > _MAX_DEPTH:
            raise Broken(f"nested deeper than {_MAX_DEPTH}")
        if not depth:
            return "".join(taken)


def _form(template: str) -> CallForm:
    """Gemma 3's form, which has JSON; arguments in the others' notation follow no schema."""
    return CallForm(("```tool_call\n",), ("\n```",))


GEMMA = Format(
    "gemma",
    ("<start_function_call>", "<|tool_call>", "<start_of_turn>"),
    (
        Span(
            "<start_function_call>",
            read=_calls("<end_function_call>"),
            inner=("<end_function_call>", "<escape>"),
        ),
        Span("<|tool_call>", read=_calls("<tool_call|>"), inner=("<tool_call|>", '<|"|>')),
        Span("```tool_call", read=json_calls("```")),
        Span("```tool_code", read=python_list("```")),
    ),
    form=_form,
)
