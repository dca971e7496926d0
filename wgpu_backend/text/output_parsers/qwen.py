"""Hermes and Qwen: ``<tool_call>`` with JSON, or with Qwen3-Coder's tags; and GLM's pairs.

::

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

    <tool_call>
    <function=weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

Seed-OSS writes Qwen3-Coder's tags in ``<seed:tool_call>``; Hunyuan several of ``<tool_call>``, with
a name and a code block in each, in ``<tool_calls>``.
"""

from __future__ import annotations

from wgpu_backend.text.output_parsers.formats import HERMES, CallForm, Format
from wgpu_backend.text.output_parsers.incoming_text import Reader
from wgpu_backend.text.output_parsers.readers import json_reader
from wgpu_backend.text.output_parsers.spans import Body, Span, SpanReader
from wgpu_backend.text.output_parsers.tagged import (
    Tagging,
    function_reader,
    read_glm_call,
    tagged_reader,
    tool_call_reader,
)

_END, _ALL_END = "</tool_call>", "</tool_calls>"


def _functions(*closings: str, lines: bool = True) -> Tagging:
    return Tagging(
        "<function=", ">", "<parameter=", ">", "</parameter>", "</function>", closings, lines=lines
    )


def glm_tagging(suffix: str = "") -> Tagging:
    """Return the tags of GLM, or of Hy 3 with a suffix in each."""
    return Tagging(
        call="",
        named="",
        parameter=f"<arg_key{suffix}>",
        keyed=f"<arg_value{suffix}>",
        closing=f"</arg_value{suffix}>",
        closings=(f"</tool_call{suffix}>",),
        key_end=f"</arg_key{suffix}>",
    )


def sections_reader(suffix: str = "") -> SpanReader:
    """Return a reader of ``<tool_calls>``: a JSON list, or several ``<tool_call>``."""
    call, end = f"<tool_call{suffix}>", f"</tool_calls{suffix}>"
    of_json, tagging = json_reader(end), glm_tagging(suffix)

    def read(body: Body) -> Reader[None]:
        text = body.text
        mark = yield from text.skip_spaces()
        if mark in ("{", "["):
            yield from of_json(body)
            return
        yield from text.expect(call)
        while True:
            if (yield from text.skip_spaces()) in ("{", "["):
                yield from json_reader(*tagging.closings)(body)
            else:
                yield from read_glm_call(body, tagging, f"<tool_sep{suffix}>")
            yield from text.skip_spaces()
            if (yield from text.take(call, end)) != call:
                return

    return read


CALL = Span(
    "<tool_call>",
    read=tool_call_reader(glm_tagging(), _functions(_END), "<tool_sep>"),
    inner=(*_functions(_END).inner, *glm_tagging().inner, _END),
)
FUNCTION = Span("<function=", read=function_reader(_functions(), fallback=(_END,)))
CALLS = Span("<tool_calls>", read=sections_reader(), inner=(_ALL_END, "<tool_sep>"))


def _list(template: str) -> CallForm:
    del template
    return CallForm((CALLS.opening,), (_ALL_END,), listed=True)


def _qwen_form(template: str) -> CallForm:
    """Return Qwen3-Coder's form if the template has it, and Hermes' otherwise."""
    if "<function=" not in template:
        return HERMES
    return functions_form("<tool_call>", "\n", _END, "\n")


def functions_form(opening: str, before: str, closing: str, line: str) -> CallForm:
    """Return the form of a call with ``<function=``, with or without line breaks around values."""
    return CallForm(
        (opening, before + "<function={name}>\n"),
        ("</function>\n", closing),
        argument=("<parameter={key}>" + line,),
        argument_end=(line + "</parameter>\n",),
    )


def _seed(template: str) -> CallForm:
    del template
    return functions_form("<seed:tool_call>", "\n", "</seed:tool_call>", "")


def _glm(template: str) -> CallForm:
    del template
    return CallForm(
        ("<tool_call>", "{name}\n"),
        ("</tool_call>",),
        argument=("<arg_key>", "{key}", "</arg_key>", "\n", "<arg_value>"),
        argument_end=("</arg_value>", "\n"),
    )


APRIEL = Format(
    "apriel",
    ("<tool_calls>[",),
    (Span(CALLS.opening, read=CALLS.read, inner=CALLS.inner, interrupts=True), CALL),
    form=_list,
)
SEED = Format(
    "seed",
    ("<seed:tool_call>",),
    (
        Span(
            "<seed:tool_call>",
            read=tagged_reader(_functions("</seed:tool_call>", lines=False)),
            inner=("</seed:tool_call>",),
        ),
        FUNCTION,
        CALL,
    ),
    form=_seed,
)
GLM = Format("glm", ("<arg_key>",), (CALL,), form=_glm)
QWEN = Format("qwen", ("<tool_call>", "<tool_calls>"), (CALL, CALLS, FUNCTION), form=_qwen_form)
