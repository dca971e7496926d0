"""Llama 3: JSON alone, behind ``<|python_tag|>``, or ``<function=name>{…}</function>``."""

from __future__ import annotations

import re

from wgpu_backend.text.output_parsers.arriving import Broken, Reading
from wgpu_backend.text.output_parsers.bare_json import bare
from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.literals import python_calls
from wgpu_backend.text.output_parsers.parts import ToolCall
from wgpu_backend.text.output_parsers.qwen import FUNCTION
from wgpu_backend.text.output_parsers.readers import closed, json_calls, python_list
from wgpu_backend.text.output_parsers.spans import Body, Span

_NAME = re.compile(r"[\w.]*")
_ENDS = ("<|eom_id|>", "<|eot_id|>")


def _python(body: Body) -> Reading[None]:
    """Read calls as JSON, one after another or with semicolons, or of a built-in tool."""
    text = body.text
    if (yield from text.spaces()) in ("{", "["):
        yield from json_calls(*_ENDS)(body)
        return
    name = (yield from text.run(_NAME)).removesuffix(".call")
    source = yield from text.bracketed("python")
    [call] = python_calls(f"call{source}")
    if not name or call.positional or not call.named:
        raise Broken("no call")
    body.give([ToolCall(name, call.named)])
    yield from closed(body, *_ENDS)


def _form(template: str) -> CallForm:
    return CallForm(arguments_key="parameters")


LLAMA = Format(
    "llama",
    ("<|python_tag|>", "<|start_header_id|>", "<|python_start|>", "<|header_start|>"),
    (
        Span("<|python_tag|>", read=_python, inner=_ENDS),
        Span("<|python_start|>", read=python_list("<|python_end|>"), inner=("<|python_end|>",)),
        FUNCTION,
    ),
    make=bare,
    form=_form,
)
