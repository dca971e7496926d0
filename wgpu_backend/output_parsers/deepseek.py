"""DeepSeek: calls between tags of their own, since V3.1 without a code block.

::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}…
"""

from __future__ import annotations

from wgpu_backend.output_parsers.calls import Tools, arguments_of
from wgpu_backend.output_parsers.formats import CallForm, Format
from wgpu_backend.output_parsers.parts import ToolCall
from wgpu_backend.output_parsers.spans import Span

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def _calls(body: str, tools: Tools) -> list[ToolCall]:
    found = [_call(part.partition(_CALL_END)[0]) for part in body.split(_CALL)[1:]]
    if not found:
        raise ValueError("no call")
    return found


def _call(text: str) -> ToolCall:
    name, separator, rest = text.partition(_SEPARATOR)
    if not separator:
        raise ValueError("no separator")
    if "```json" in rest:
        name, _, rest = rest.partition("```json")
        rest = rest.rpartition("```")[0] or rest
    if not name.strip():
        raise ValueError("no name")
    return ToolCall(name.strip(), arguments_of(rest.strip()))


def _form(template: str) -> CallForm:
    if "```json" not in template:
        return CallForm((_BEGIN, _CALL, "{name}", _SEPARATOR), (_CALL_END, _END), name_key="")
    before = (_BEGIN, _CALL, "function", _SEPARATOR, "{name}\n```json\n")
    return CallForm(before, ("\n```", _CALL_END, _END), name_key="")


DEEPSEEK = Format("deepseek", (_BEGIN,), (Span(_BEGIN, (_END,), _calls),), form=_form)
