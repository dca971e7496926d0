"""What a format of tool calls is, and the tags of reasoning that any of them may have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from wgpu_backend.text.output_parsers.calls import Tools
from wgpu_backend.text.output_parsers.readers import bare_calls
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
    Span("<|open|>think<|sep|>", ("<|close|>think<|sep|>",)),
    Span("Here are my reasoning steps:", ("[BEGIN FINAL RESPONSE]",)),
)
_SOLAR = ("<|think|>", "<|content|>")  # the first alone is what asks a Gemma 4 to reason
_NAMED = re.compile(r"""HYTK\s*=\s*['"]([^'"]*)['"]""")


def reasoning(template: str) -> tuple[Span, ...]:
    """Spans of reasoning whose tags a chat template has."""
    found = tuple(span for span in _REASONING if _has(template, span))
    suffix = suffix_in(template)
    if suffix is None:
        return found
    return (*found, Span(f"<think{suffix}>", (f"</think{suffix}>",)))


def _has(template: str, span: Span) -> bool:
    if span.opening in _SOLAR:
        return all(tag in template for tag in _SOLAR)
    return any(tag in template for tag in span.tags)


def suffix_in(template: str) -> str | None:
    """What the template of a Hy 3 puts into each of its tags; None for other templates."""
    named = _NAMED.search(template)
    return named[1] if named and "<think{}>" in template else None


def spans_alone(spans: tuple[Span, ...], tools: Tools, prompt: str) -> OutputParser:
    """Parser of spans, and of calls in JSON that are the whole answer."""
    return SpanParser(spans, tools, prompt, bare_calls(strict=True))


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
    argument, argument_end : tuple of str
        Tags and texts around each argument, ``{key}`` for its name, where they are not JSON.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    name_key: str = "name"
    arguments_key: str = "arguments"
    listed: bool = False
    argument: tuple[str, ...] = ()
    argument_end: tuple[str, ...] = ()


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
    of_template : callable or None
        Spans of calls of a template, where its tags differ from model to model.
    """

    name: str
    marks: tuple[str, ...]
    calls: tuple[Span, ...] = ()
    others: tuple[Span, ...] = ()
    make: Callable[[tuple[Span, ...], Tools, str], OutputParser] = spans_alone
    form: Callable[[str], CallForm] = hermes
    of_template: Callable[[str], tuple[Span, ...]] | None = None

    def parser(self, template: str, tools: Tools, prompt: str) -> OutputParser:
        """Parser for an answer of a model with this template."""
        calls = self.calls if self.of_template is None else self.of_template(template)
        spans = (*reasoning(template), *self.others, *(calls if tools else ()))
        return self.make(spans, tools, prompt)
