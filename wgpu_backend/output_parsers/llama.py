"""Llama 3: JSON alone, behind ``<|python_tag|>``, or ``<function=name>{…}</function>``."""

from __future__ import annotations

import re

from wgpu_backend.output_parsers.bare_json import JSON
from wgpu_backend.output_parsers.calls import Tools, arguments_of, calls_of, decoded
from wgpu_backend.output_parsers.formats import CallForm, Format
from wgpu_backend.output_parsers.held import JsonEnd
from wgpu_backend.output_parsers.parts import ToolCall
from wgpu_backend.output_parsers.spans import Span

_BUILT_IN = re.compile(r'\s*(\w+)\.call\((\w+)=("(?:[^"\\]|\\.)*")\)\s*', re.DOTALL)


def _python(body: str, tools: Tools) -> list[ToolCall]:
    """Calls as JSON, one behind another or with semicolons, or of a built-in tool."""
    built_in = _BUILT_IN.fullmatch(body)
    if built_in is not None:
        return [ToolCall(built_in[1], {built_in[2]: decoded(built_in[3])})]
    found: list[ToolCall] = []
    rest = body.strip()
    while rest:
        size = JsonEnd().push(rest)
        if size is None:
            raise ValueError("unfinished JSON")
        found += calls_of(rest[:size])
        rest = rest[size:].lstrip("; \n\t")
    return found


def _tagged(body: str, tools: Tools) -> list[ToolCall]:
    name, bracket, arguments = body.partition(">")
    if not bracket or not name.strip():
        raise ValueError("no name")
    return [ToolCall(name.strip(), arguments_of(arguments))]


def _form(template: str) -> CallForm:
    return CallForm(arguments_key="parameters")


LLAMA = Format(
    "llama",
    ("<|python_tag|>", "<|start_header_id|>"),
    (
        Span("<|python_tag|>", ("<|eom_id|>", "<|eot_id|>"), _python),
        Span("<function=", ("</function>",), _tagged),
    ),
    make=JSON.make,
    form=_form,
)
