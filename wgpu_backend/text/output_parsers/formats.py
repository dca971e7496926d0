"""The description of a tool-call format, and the reasoning tags that any of them may have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from wgpu_backend.text.output_parsers.calls import Tools
from wgpu_backend.text.output_parsers.readers import bare_reader
from wgpu_backend.text.output_parsers.spans import OutputParser, Span, SpanParser

_REASONING = (
    Span("<think>", ("</think>",)),
    Span("[THINK]", ("[/THINK]",)),
    Span("<|START_THINKING|>", ("<|END_THINKING|>",)),
    Span("<seed:think>", ("</seed:think>",)),
    Span("<|channel>thought", ("<channel|>",)),
    Span("<|inner_prefix|>", ("<|inner_suffix|>",)),
    Span("<|think|>", ("<|end|>",)),
    Span("<mm:think>", ("</mm:think>",)),
    Span("<|thought_start|>", ("<|thought_end|>",)),
    Span("<|open|>think<|sep|>", ("<|close|>think<|sep|>",)),
    Span("Here are my reasoning steps:", ("[BEGIN FINAL RESPONSE]",)),
    Span("<thought>", ("</thought>",)),
    Span("<reasoning>", ("</reasoning>",)),
    Span("◁think▷", ("◁/think▷",)),
)
# Tags around the answer after reasoning: Granite 3 and Ernie 4.5, and Hunyuan.
_ANSWERS = (
    Span("<response>", ("</response>",), unwrapped=True),
    Span("<answer>", ("</answer>",), unwrapped=True),
)
# Both must be there: "<|think|>" alone is Gemma 4's switch for reasoning.
_SOLAR = ("<|think|>", "<|content|>")
_NAMED = re.compile(r"""HYTK\s*=\s*['"]([^'"]*)['"]""")


def reasoning_spans(template: str) -> tuple[Span, ...]:
    """Return the spans of reasoning whose tags a chat template has, and of answers after it."""
    found = tuple(span for span in _REASONING if _has(template, span))
    if found:
        found += tuple(span for span in _ANSWERS if span.opening in template)
    suffix = find_suffix(template)
    if suffix is None:
        return found
    return (*found, Span(f"<think{suffix}>", (f"</think{suffix}>",)))


def _has(template: str, span: Span) -> bool:
    if span.opening in _SOLAR:
        return all(tag in template for tag in _SOLAR)
    return any(tag in template for tag in span.tags)


def find_suffix(template: str) -> str | None:
    """Return the suffix in each tag of a Hy 3 template, or None for other templates."""
    named = _NAMED.search(template)
    return named[1] if named and "<think{}>" in template else None


def make_span_parser(spans: tuple[Span, ...], tools: Tools, prompt: str) -> OutputParser:
    """Make a parser of spans, and of calls in JSON that are the whole answer."""
    return SpanParser(spans, tools, prompt, bare_reader(strict=True))


def make_bare_parser(spans: tuple[Span, ...], tools: Tools, prompt: str) -> OutputParser:
    """Make a parser of spans and of calls in bare JSON, which may lack arguments."""
    return SpanParser(spans, tools, prompt, bare_reader(strict=False))


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form of one call, for answers that are constrained to be calls.

    Parameters
    ----------
    before, after : tuple of str
        Tags and texts around the JSON; ``{name}`` stands for the function's name.
    name_key : str
        Key of the name in the JSON; empty if the JSON contains only the arguments.
    arguments_key : str
        Key of the arguments in the JSON.
    listed : bool
        Whether the object is in a list.
    argument, argument_end : tuple of str
        Tags and texts around each argument if they are not JSON; ``{key}`` stands for its name,
        and ``{text}`` for whether its value is a string.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    name_key: str = "name"
    arguments_key: str = "arguments"
    listed: bool = False
    argument: tuple[str, ...] = ()
    argument_end: tuple[str, ...] = ()


HERMES = CallForm(("<tool_call>", "\n"), ("\n", "</tool_call>"))


def hermes_form(template: str) -> CallForm:
    """Return Hermes' form, which parsers of several formats accept."""
    del template
    return HERMES


@dataclass(frozen=True, slots=True)
class Format:
    """A notation of tool calls.

    Parameters
    ----------
    name : str
        Name of the format, for the user.
    marks : tuple of str
        Texts of which such a model's chat template contains at least one.
    calls : tuple of Span
        Spans of calls; unused if there are no functions, so that their text stays text.
    others : tuple of Span
        Spans that exist without functions, too.
    make : callable
        Makes a parser of spans, functions and the prompt.
    form : callable
        Form of a call for a model with this template.
    of_template : callable or None
        Spans of calls of a template, if tags differ from model to model.
    """

    name: str
    marks: tuple[str, ...]
    calls: tuple[Span, ...] = ()
    others: tuple[Span, ...] = ()
    make: Callable[[tuple[Span, ...], Tools, str], OutputParser] = make_span_parser
    form: Callable[[str], CallForm] = hermes_form
    of_template: Callable[[str], tuple[Span, ...]] | None = None

    def parser(self, template: str, tools: Tools, prompt: str) -> OutputParser:
        """Create a parser for an answer of a model with this template."""
        calls = self.calls if self.of_template is None else self.of_template(template)
        spans = (*reasoning_spans(template), *self.others, *(calls if tools else ()))
        return self.make(spans, tools, prompt)
