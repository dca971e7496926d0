"""Command R and Command A: a list of actions, and the answer between tags of its own.

Command R7B and later write ``<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>``,
the first Command R a code block behind ``Action:``, where the function ``directly-answer`` means
that none is called.
"""

from __future__ import annotations

from wgpu_backend.output_parsers.calls import Tools, calls_of
from wgpu_backend.output_parsers.formats import CallForm, Format
from wgpu_backend.output_parsers.parts import ToolCall
from wgpu_backend.output_parsers.spans import Span

_NONE = ("directly-answer", "directly_answer")


def _calls(body: str, tools: Tools) -> list[ToolCall]:
    return [call for call in calls_of(body) if call.name not in _NONE]


def _form(template: str) -> CallForm:
    before, after = ("<|START_ACTION|>",), ("<|END_ACTION|>",)
    if before[0] not in template:
        before, after = ("Action: ```json\n",), ("\n```",)
    return CallForm(before, after, "tool_name", "parameters", listed=True)


COMMAND_R = Format(
    "command-r",
    ("<|START_ACTION|>", "<|START_RESPONSE|>", "Action: ```json", "Action:```json"),
    (
        Span("<|START_ACTION|>", ("<|END_ACTION|>",), _calls),
        Span("Action: ```json", ("```",), _calls),
        Span("Action:```json", ("```",), _calls),
    ),
    (Span("<|START_RESPONSE|>", ("<|END_RESPONSE|>",), unwrapped=True),),
    form=_form,
)
