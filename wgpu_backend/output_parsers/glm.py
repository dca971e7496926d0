"""GLM 4.5 and later: a name, and pairs of keys and values in tags.

::

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>
"""

from __future__ import annotations

import re

from wgpu_backend.output_parsers.calls import Tools, calls_of, parameter_types, typed
from wgpu_backend.output_parsers.formats import Format
from wgpu_backend.output_parsers.parts import ToolCall
from wgpu_backend.output_parsers.spans import Span

_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def _calls(body: str, tools: Tools) -> list[ToolCall]:
    text = body.strip()
    if text.startswith("{"):
        return calls_of(text)
    name = text.partition("<arg_key>")[0].strip()
    if not name or any(mark in name for mark in "<>\n"):
        raise ValueError("no name")
    types = parameter_types(tools)
    pairs = [(key.strip(), value) for key, value in _PAIR.findall(text)]
    if len(pairs) != text.count("<arg_key>"):
        raise ValueError("a key has no value")
    return [ToolCall(name, {key: typed(v, types.get((name, key))) for key, v in pairs})]


GLM = Format("glm", ("<arg_key>",), (Span("<tool_call>", ("</tool_call>",), _calls),))
