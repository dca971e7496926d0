"""Command R and Command A: a list of actions, and the answer between tags of its own.

Command R7B and later write ``<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>``,
the first Command R a code block after ``Action:``, where the function ``directly-answer`` means
that none is called.
"""

from __future__ import annotations

from wgpu_backend.text.output_parsers.arriving import Reading
from wgpu_backend.text.output_parsers.calls import calls_of
from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.readers import closed, opened_json
from wgpu_backend.text.output_parsers.spans import Body, Read, Span

_SPACES = (" ", "", "\n")
_NONE = ("directly-answer", "directly_answer")


def _actions(closing: str) -> Read:
    def read(body: Body) -> Reading[None]:
        yield from opened_json(body.text)
        found = calls_of((yield from body.text.bracketed()))
        body.give(call for call in found if call.name not in _NONE)
        yield from closed(body, closing)

    return read


def _form(template: str) -> CallForm:
    before, after = ("<|START_ACTION|>",), ("<|END_ACTION|>",)
    if before[0] not in template:
        before, after = ("Action: ```json\n",), ("\n```",)
    return CallForm(before, after, "tool_name", "parameters", listed=True)


COMMAND_R = Format(
    "command-r",
    ("<|START_ACTION|>", "<|START_RESPONSE|>", *(f"Action:{s}```json" for s in _SPACES), _NONE[0]),
    (
        Span("<|START_ACTION|>", read=_actions("<|END_ACTION|>"), inner=("<|END_ACTION|>",)),
        *(Span(f"Action:{space}```json", read=_actions("```")) for space in _SPACES),
    ),
    (
        Span("<|START_RESPONSE|>", ("<|END_RESPONSE|>",), unwrapped=True),
        Span("<|START_TEXT|>", ("<|END_TEXT|>",), unwrapped=True),
    ),
    form=_form,
)
