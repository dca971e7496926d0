"""What a format of tool calls is, and the tags of reasoning that any of them may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wgpu_backend.output_parsers.calls import Tools
from wgpu_backend.output_parsers.spans import OutputParser, Span, SpanParser

_REASONING = (
    Span("<think>", ("</think>",)),
    Span("[THINK]", ("[/THINK]",)),
    Span("<|START_THINKING|>", ("<|END_THINKING|>",)),
    Span("<seed:think>", ("</seed:think>",)),
    Span("<|channel>thought", ("<channel|>",)),
    Span("<|inner_prefix|>", ("<|inner_suffix|>",)),
)


def reasoning(template: str) -> tuple[Span, ...]:
    """Spans of reasoning whose tags a chat template has."""
    return tuple(
        span
        for span in _REASONING
        if span.opening in template or any(tag in template for tag in span.closings)
    )


def spans_alone(spans: tuple[Span, ...], tools: Tools, prompt: str) -> OutputParser:
    """Parser of a format that is nothing but spans."""
    return SpanParser(spans, tools, prompt)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How one call is written, for answers that are made to be calls.

    Parameters
    ----------
    before, after : tuple of str
        Tags and texts around the JSON; ``{name}`` stands for the function's name.
    name_key : str
        Key of the name in the JSON; empty where the JSON is the arguments alone.
    arguments_key : str
    listed : bool
        Whether the object stands in a list.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    name_key: str = "name"
    arguments_key: str = "arguments"
    listed: bool = False


HERMES = CallForm(("<tool_call>", "\n"), ("\n", "</tool_call>"))


def hermes(template: str) -> CallForm:
    """Hermes' form, which parsers of several formats know."""
    del template
    return HERMES


@dataclass(frozen=True, slots=True)
class Format:
    """How models write calls.

    Parameters
    ----------
    name : str
    marks : tuple of str
        Texts of which a chat template of such a model has one.
    calls : tuple of Span
        Left out where no function may be called: what looks like a call is then text.
    others : tuple of Span
        Spans that are there without functions, too.
    make : callable
        Makes a parser of spans, functions and the prompt.
    form : callable
        How a model with this template writes a call.
    """

    name: str
    marks: tuple[str, ...]
    calls: tuple[Span, ...] = ()
    others: tuple[Span, ...] = ()
    make: Callable[[tuple[Span, ...], Tools, str], OutputParser] = spans_alone
    form: Callable[[str], CallForm] = hermes

    def parser(self, template: str, tools: Tools, prompt: str) -> OutputParser:
        """Parser for an answer of a model with this template."""
        spans = (*reasoning(template), *self.others, *(self.calls if tools else ()))
        return self.make(spans, tools, prompt)
