"""Calls that are written as JSON and nothing else, where the answer begins.

``{"name": "weather", "arguments": {"city": "Oslo"}}``, or a list of such objects, in a code block
or not; or ``[weather(city="Oslo")]``. Hermes' tags are understood, too: they are what most models
know that their template tells nothing.
"""

from __future__ import annotations

from wgpu_backend.text.output_parsers.calls import Tools
from wgpu_backend.text.output_parsers.formats import CallForm, Format
from wgpu_backend.text.output_parsers.qwen import QWEN
from wgpu_backend.text.output_parsers.readers import bare_calls
from wgpu_backend.text.output_parsers.spans import OutputParser, Span, SpanParser


def bare(spans: tuple[Span, ...], tools: Tools, prompt: str) -> OutputParser:
    """Parser of spans, and of calls in JSON, of which some have no arguments."""
    return SpanParser(spans, tools, prompt, bare_calls(strict=False))


def _form(template: str) -> CallForm:
    return CallForm()


JSON = Format("json", (), QWEN.calls, make=bare, form=_form)
