"""All formats, and the choice of a parser by a model's chat template."""

from __future__ import annotations

from wgpu_backend.errors import OptionError
from wgpu_backend.text.output_parsers.calls import Tools
from wgpu_backend.text.output_parsers.families import (
    COMMAND_R,
    DEEPSEEK,
    DSML,
    FAMILIES,
    JSON,
    LLAMA,
    MISTRAL,
)
from wgpu_backend.text.output_parsers.formats import Format, reasoning_spans
from wgpu_backend.text.output_parsers.gemma import GEMMA
from wgpu_backend.text.output_parsers.harmony import HARMONY
from wgpu_backend.text.output_parsers.qwen import APRIEL, GLM, QWEN, SEED
from wgpu_backend.text.output_parsers.spans import OutputParser

# The first one whose mark is in the template wins: GLM's templates contain Qwen's tag as well.
FORMATS = (
    HARMONY, DEEPSEEK, DSML, MISTRAL, COMMAND_R, *FAMILIES, SEED, APRIEL, GLM, QWEN, LLAMA, GEMMA,
    JSON,
)  # fmt: skip


def find_format(template: str) -> Format:
    """Return the format of a model's calls, by default plain JSON."""
    return next(
        (each for each in FORMATS if any(mark in template for mark in each.marks)),
        JSON,
    )


def thinks(template: str) -> bool:
    """Return whether a model's reasoning can be separated from its answers."""
    return find_format(template) is HARMONY or bool(reasoning_spans(template))


def calls_tools(template: str) -> bool:
    """Return whether a template can describe functions to its model."""
    return "tools" in template


def parser_for(
    template: str, *, tools: Tools = (), prompt: str = "", name: str | None = None
) -> OutputParser:
    """Return a parser of one answer.

    Parameters
    ----------
    template : str
        The model's chat template; empty if it has none.
    tools : sequence of mappings
        Functions that may be called, in OpenAI's format. Without any, text that looks like a call
        stays text.
    prompt : str
        The text that the model continues: some templates end with the tag that begins its
        reasoning.
    name : str or None
        Format to use instead of the template's.

    Raises
    ------
    OptionError
        There is no format with this name.
    """
    chosen = find_format(template) if name is None else _find_named(name)
    return chosen.parser(template, tools, prompt)


def _find_named(name: str) -> Format:
    for each in FORMATS:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in FORMATS)
    raise OptionError(f"parser: {name!r}, known are {known}")
