"""Mistral: calls behind ``[TOOL_CALLS]``, up to the end of the answer.

A list of JSON objects, or since Mistral Small 3.1 a name and its arguments for each call:
``[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}``, at times with ``[CALL_ID]`` between them.
"""

from __future__ import annotations

from wgpu_backend.output_parsers.calls import Tools, arguments_of, calls_of
from wgpu_backend.output_parsers.formats import CallForm, Format
from wgpu_backend.output_parsers.parts import ToolCall
from wgpu_backend.output_parsers.spans import Span

_OPENING = "[TOOL_CALLS]"


def _calls(body: str, tools: Tools) -> list[ToolCall]:
    return [call for text in body.split(_OPENING) for call in _each(text.strip())]


def _each(text: str) -> list[ToolCall]:
    if text.startswith(("[", "{")):
        return calls_of(text)
    name, brace, arguments = text.partition("{")
    name = name.removesuffix("[ARGS]").partition("[CALL_ID]")[0].strip()
    if not brace or not name:
        raise ValueError("no name or no arguments")
    return [ToolCall(name, arguments_of(brace + arguments))]


def _form(template: str) -> CallForm:
    if "[ARGS]" in template:
        return CallForm((_OPENING, "{name}", "[ARGS]"), name_key="")
    return CallForm((_OPENING,), listed=True)


MISTRAL = Format("mistral", (_OPENING,), (Span(_OPENING, ("</s>",), _calls),), form=_form)
