"""Mistral: calls after ``[TOOL_CALLS]``.

A list of JSON objects, or since Mistral Small 3.1 a name and its arguments for each call:
``[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}``, at times with ``[CALL_ID]`` between them.
"""

from __future__ import annotations

from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.readers import mistral_calls
from wgpu_backend.text.output_parsers.spans import Span

_OPENING = "[TOOL_CALLS]"


def _form(template: str) -> CallForm:
    if "[ARGS]" in template:
        return CallForm((_OPENING, "{name}", "[ARGS]"), name_key="")
    return CallForm((_OPENING,), listed=True)


MISTRAL = Format(
    "mistral",
    (_OPENING,),
    (Span(_OPENING, read=mistral_calls, inner=("[ARGS]", "[CALL_ID]"), interrupts=True),),
    form=_form,
)
