"""Answers of models taken apart as they come: text, reasoning, calls of functions.

A format is a file; `choosing` finds the one that a model writes. What most of them share, text with
spans between tags, is in `spans`.
"""

from __future__ import annotations

from wgpu_backend.text.output_parsers.choosing import (
    FORMATS,
    calls_tools,
    format_of,
    parser_for,
    thinks,
)
from wgpu_backend.text.output_parsers.parts import Content, Part, Thinking, ToolCall, Whole, whole
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
    "format_of",
    "parser_for",
    "thinks",
    "whole",
]
