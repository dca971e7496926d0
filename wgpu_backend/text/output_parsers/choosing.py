"""Which parser an answer needs, told by the text of its model's chat template."""

from __future__ import annotations

from wgpu_backend.errors import OptionError
from wgpu_backend.text.output_parsers.bare_json import JSON
from wgpu_backend.text.output_parsers.calls import Tools
from wgpu_backend.text.output_parsers.command_r import COMMAND_R
from wgpu_backend.text.output_parsers.deepseek import DEEPSEEK, DSML
from wgpu_backend.text.output_parsers.families import FAMILIES
from wgpu_backend.text.output_parsers.formats import Format, reasoning
from wgpu_backend.text.output_parsers.gemma import GEMMA
from wgpu_backend.text.output_parsers.harmony import HARMONY
from wgpu_backend.text.output_parsers.llama import LLAMA
from wgpu_backend.text.output_parsers.mistral import MISTRAL
from wgpu_backend.text.output_parsers.qwen import APRIEL, GLM, QWEN, SEED
from wgpu_backend.text.output_parsers.spans import OutputParser

# The first whose mark a template has: GLM's templates have Qwen's tag as well.
FORMATS = (
    HARMONY, DEEPSEEK, DSML, MISTRAL, COMMAND_R, *FAMILIES, SEED, APRIEL, GLM, QWEN, LLAMA, GEMMA,
    JSON,
)  # fmt: skip


def format_of(template: str) -> Format:
    """Format of a model's calls; plain JSON where its template tells of none."""
    return next(
        (each for each in FORMATS if any(mark in template for mark in each.marks)),
        JSON,
    )


def thinks(template: str) -> bool:
    """Whether a model's answers have reasoning that can be told apart."""
    return format_of(template) is HARMONY or bool(reasoning(template))


def calls_tools(template: str) -> bool:
    """Whether a template tells its model of functions."""
    return "tools" in template


def parser_for(
    template: str, *, tools: Tools = (), prompt: str = "", name: str | None = None
) -> OutputParser:
    """Parser of one answer.

    Parameters
    ----------
    template : str
        The model's chat template; empty where it has none.
    tools : sequence of mappings
        Functions that may be called, as OpenAI describes them; without any, what looks like a
        call is text.
    prompt : str
        What the model continues: some templates end in the tag that begins its reasoning.
    name : str or None
        Format to use in place of the template's.

    Raises
    ------
    OptionError
        There is no format of that name.
    """
    chosen = format_of(template) if name is None else _named(name)
    return chosen.parser(template, tools, prompt)


def _named(name: str) -> Format:
    for each in FORMATS:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in FORMATS)
    raise OptionError(f"parser: {name!r}, known are {known}")
