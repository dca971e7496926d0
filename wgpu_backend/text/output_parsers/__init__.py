"""Streaming parsers of models' answers: text, reasoning and tool calls.

``registry.py`` finds a model's format by its chat template, and has most formats; others are in
``harmony.py`` and ``gemma.py``. Most are text with spans between tags, which ``spans.py`` parses.
"""

from __future__ import annotations

from wgpu_backend.text.output_parsers.parts import Content, Part, Thinking, ToolCall, Whole, whole
from wgpu_backend.text.output_parsers.registry import (
    FORMATS,
    calls_tools,
    find_format,
    parser_for,
    thinks,
)
from wgpu_backend.text.output_parsers.spans import OutputParser

__all__ = [
    "FORMATS",
    "Content",
    "OutputParser",
    "Part",
    "Thinking",
    "ToolCall",
    "Whole",
    "calls_tools",
    "find_format",
    "parser_for",
    "thinks",
    "whole",
]
