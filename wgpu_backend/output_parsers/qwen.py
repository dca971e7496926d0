"""Hermes and Qwen: ``<tool_call>`` with JSON, or with Qwen3-Coder's tags.

::

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

    <tool_call>
    <function=weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>
"""

from __future__ import annotations

import re

from wgpu_backend.output_parsers.calls import Tools, calls_of, parameter_types, typed
from wgpu_backend.output_parsers.formats import Format
from wgpu_backend.output_parsers.parts import ToolCall
from wgpu_backend.output_parsers.spans import Span

_PARAMETER = re.compile(
    r"<parameter=([^>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)


def _calls(body: str, tools: Tools) -> list[ToolCall]:
    text = body.strip()
    return _functions(text, tools) if text.startswith("<function=") else calls_of(text)


def _functions(text: str, tools: Tools) -> list[ToolCall]:
    types = parameter_types(tools)
    found: list[ToolCall] = []
    for part in text.split("<function=")[1:]:
        name, bracket, inner = part.partition(">")
        name = name.strip()
        if not bracket or not name:
            raise ValueError("no name")
        inner = inner.rsplit("</function>", 1)[0]
        found.append(
            ToolCall(
                name,
                {
                    each[1].strip(): typed(each[2], types.get((name, each[1].strip())))
                    for each in _PARAMETER.finditer(inner)
                },
            )
        )
    return found


QWEN = Format("qwen", ("<tool_call>",), (Span("<tool_call>", ("</tool_call>",), _calls),))
