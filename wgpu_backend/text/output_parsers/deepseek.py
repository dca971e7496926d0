"""DeepSeek: calls between tags of their own.

::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}…

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="weather">
    <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

The first form is R1's, the second V3.1's, the third V3.2's; V4 writes ``tool_calls`` in it.
"""

from __future__ import annotations

from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.qwen import CALL as HERMES
from wgpu_backend.text.output_parsers.readers import sectioned
from wgpu_backend.text.output_parsers.spans import Span
from wgpu_backend.text.output_parsers.tagged import Tagging, tagged_calls

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def _form(template: str) -> CallForm:
    if "```json" not in template:
        return CallForm((_BEGIN, _CALL, "{name}", _SEPARATOR), (_CALL_END, _END), name_key="")
    before = (_BEGIN, _CALL, "function", _SEPARATOR, "{name}\n```json\n")
    return CallForm(before, ("\n```", _CALL_END, _END), name_key="")


def _dsml(name: str) -> Span:
    end = f"</｜DSML｜{name}>"
    tagging = Tagging(
        '<｜DSML｜invoke name="',
        '">',
        '<｜DSML｜parameter name="',
        '">',
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        (end,),
    )
    return Span(f"<｜DSML｜{name}>", read=tagged_calls(tagging), inner=("｜DSML｜", end))


DEEPSEEK = Format(
    "deepseek",
    (_BEGIN,),
    (
        Span(
            _BEGIN,
            read=sectioned(_CALL, (_SEPARATOR,), _CALL_END, _END),
            inner=(_CALL, _SEPARATOR, _CALL_END, _END),
        ),
    ),
    form=_form,
)
DSML = Format("dsml", ("｜DSML｜",), (_dsml("function_calls"), _dsml("tool_calls"), HERMES))
